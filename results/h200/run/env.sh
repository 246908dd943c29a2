# vLLM's bundle, our sources and the harness's wheels. SRCS: the tree.
SRCS=${SRCS:-/tmp/srcs2}
export HOME=/tmp/jc
export VLLM_ENABLE_V1_MULTIPROCESSING=1
. /tmp/vb/part6/env.sh
export PYTHONPATH=$SRCS:/tmp/meta:$PYTHONPATH:/tmp/whl
export DSBENCH_KERNEL_CACHE=/tmp/kernels
cd $SRCS

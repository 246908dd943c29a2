# First call of window 1: wheels, a copy of the tree, kernels, environment.
mkdir -p /tmp/whl /tmp/res /tmp/w
for f in .whl/*.whl; do python3 -m zipfile -e "$f" /tmp/whl; done
cp -r .gpu /tmp/gpu; cp -r .kernels /tmp/kernels
mkdir -p /tmp/srcs; tar xzf .gpu/srcs.tgz -C /tmp/srcs
cat > /tmp/env1.sh <<'E'
export PYTHONPATH=/tmp/srcs:/tmp/whl PYTHONUNBUFFERED=1 DSBENCH_KERNEL_CACHE=/tmp/kernels CUDA_HOME=/usr/local/cuda-13.0
export TRITON_CACHE_DIR=/tmp/tritoncache
cd /tmp/srcs
E

# After the six pieces: join the bundle, caches, our tree. cwd does not matter; /tmp/gpu, /tmp/whl, /tmp/vb exist.
set -x
cd /tmp
python3 /tmp/vb/part6/join.py /tmp/vb /tmp
tar xJf /tmp/gpu/jit_cache.txz -C /tmp
mkdir -p /tmp/srcs2 && tar xzf /tmp/gpu/srcs.tgz -C /tmp/srcs2
mkdir -p /tmp/meta/dsbench_dspark-0.1.0.dist-info
printf 'Metadata-Version: 2.1\nName: dsbench-dspark\nVersion: 0.1.0\n' > /tmp/meta/dsbench_dspark-0.1.0.dist-info/METADATA
printf '[vllm.general_plugins]\ndsbench = impl.vllm_plugin:register\n' > /tmp/meta/dsbench_dspark-0.1.0.dist-info/entry_points.txt
mkdir -p /tmp/v4flash-6layer && cp /tmp/gpu/v4flash-6layer.config.json /tmp/v4flash-6layer/config.json
(python3 -m compileall -q -j 0 /tmp/site/vllm /tmp/srcs2 > /dev/null 2>&1; true)
nvidia-smi -L

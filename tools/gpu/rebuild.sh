#!/usr/bin/env bash
# Compiles an edited file of rebuild/src on the host of the card and links what it is in: rebuild.sh norm.cu. See rebuild.py.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" "$here/rebuild.py" "$@"

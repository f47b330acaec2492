#!/usr/bin/env bash
# Saves of all layouts that 1 to 4 ranks have, loaded in all of them: bits, and bytes read (tests/soak/README.md).
# Usage: tools/soak/layouts.sh [--mib 256] [--every 1]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$root/build/release/bin/soak_layouts
if [[ ! -x $program ]]; then
  echo "$program is not there: cmake --build --preset release --target soak_layouts" >&2
  exit 2
fi
exec "$program" "$@"

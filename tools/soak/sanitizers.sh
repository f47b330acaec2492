#!/usr/bin/env bash
# All tests but the slow ones and those that run the program `sherd`, under AddressSanitizer with UBSan and under
# ThreadSanitizer; .ci/run has those that move bytes under the one and those with threads under the other.
# Usage: tools/soak/sanitizers.sh [asan|tsan] [ctest arguments]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
presets=(asan tsan)
case "${1-}" in asan | tsan) presets=("$1"); shift ;; esac
for preset in "${presets[@]}"; do
  cmake --preset "$preset" -DSHERD_LAYERS=all
  cmake --build --preset "$preset" -j "$(nproc)"
  ctest --preset "$preset" -j "$(nproc)" -LE "slow|program" "$@"
done

#!/usr/bin/env bash
# 80,000 altered files, texts, flags and messages, read under AddressSanitizer and UBSan (tests/soak/README.md).
# Usage: tools/soak/hostile.sh [--seed N] [--inputs 80000] [--only TARGET[:INPUT]]
# The seed is a random one unless it is given, and printed; --seed S --only T:I repeats input I of target T.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
cmake --preset asan -DSHERD_LAYERS=all >&2
cmake --build --preset asan -j "$(nproc)" --target soak_hostile >&2
[[ " $* " == *" --seed "* ]] || set -- --seed "$RANDOM" "$@"
exec build/asan/bin/soak_hostile "$@"

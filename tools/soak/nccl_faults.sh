#!/usr/bin/env bash
# Faults of eight kinds (orders, mismatches, exceptions, ranks that do not come, stuck devices, errors and hangs of NCCL,
# failed inits) at drawn ranks and calls of groups over the emulated NCCL: told by rank and call in time, and bytes after
# reset() (tests/cuda/nccl).
# Usage: tools/soak/nccl_faults.sh [--seed N] [--rounds 13]
# The seed is a random one unless it is given, and printed; round r has the seed N + r, and what fails names it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$root/build/release/bin/test_nccl
if [[ ! -x $program ]]; then
  echo "$program is not there: cmake --build --preset release --target test_nccl" >&2
  exit 2
fi
seed=$((RANDOM + 1)) rounds=13
while [[ $# -gt 0 ]]; do
  case $1 in
    --seed) seed=$2 ;;
    --rounds) rounds=$2 ;;
    *) sed -n 2,6p "$0" >&2; exit 2 ;;
  esac
  shift 2
done
echo "nccl_faults.sh --seed $seed --rounds $rounds"
exec "$program" --gtest_filter='*FakeFaultSeeds*' --gtest_repeat="$rounds" --gtest_shuffle --gtest_random_seed="$seed" \
  --gtest_break_on_failure --gtest_brief=1

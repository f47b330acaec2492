#!/usr/bin/env bash
# Collectives drawn from the product of all settings, 150 in a row, on every group of the host (tests/comm/conformance).
# Usage: tools/soak/collectives.sh [--seed N] [--rounds 200]
# The seed is a random one unless it is given, and printed; round r has the seed N + r, and what fails names it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$root/build/release/bin/test_comm
if [[ ! -x $program ]]; then
  echo "$program is not there: cmake --build --preset release --target test_comm" >&2
  exit 2
fi
seed=$((RANDOM + 1)) rounds=200
while [[ $# -gt 0 ]]; do
  case $1 in
    --seed) seed=$2 ;;
    --rounds) rounds=$2 ;;
    *) sed -n 2,4p "$0" >&2; exit 2 ;;
  esac
  shift 2
done
echo "collectives.sh --seed $seed --rounds $rounds"
exec "$program" --gtest_filter='*Conformance.RandomSequencesStayExact*' --gtest_repeat="$rounds" --gtest_shuffle \
  --gtest_random_seed="$seed" --gtest_break_on_failure --gtest_brief=1

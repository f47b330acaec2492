#!/usr/bin/env bash
# Planned steps that are made wrong, each refused before it runs or run to the same bits (tests/soak/README.md).
# Usage: tools/soak/plans.sh [--seed N] [--corruptions 1000] [--only PLAN:I]
# The seed is a random one unless it is given, and printed; --seed S --corruptions N --only P:I repeats one of them.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$root/build/release/bin/soak_plans
if [[ ! -x $program ]]; then
  echo "$program is not there: cmake --build --preset release --target soak_plans" >&2
  exit 2
fi
[[ " $* " == *" --seed "* ]] || set -- --seed "$RANDOM" "$@"
exec "$program" "$@"

#!/usr/bin/env bash
# Training steps of which many are left by an exception, beside the same steps undisturbed (tests/soak/README.md).
# Usage: tools/soak/steps.sh [--seed N] [--steps 10000] [--seconds N] [--only PHASE] [--group thread|shm]
# The seed is a random one unless it is given, and printed; --seed S --only P repeats phase P of a run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$root/build/release/bin/soak_steps
if [[ ! -x $program ]]; then
  echo "$program is not there: cmake --build --preset release --target soak_steps" >&2
  exit 2
fi
[[ " $* " == *" --seed "* ]] || set -- --seed "$RANDOM" "$@"
exec "$program" "$@"

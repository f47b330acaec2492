#!/usr/bin/env bash
# What a newcomer does, in an empty tree: clone, tools/quickstart, a text of their own on four ranks, resume on one,
# sample, export, cmake --install, programs of their own against what was installed. On a host with Open MPI's programs
# but not its headers, which is what openmpi-bin alone gives.
# Usage: tests/install/newcomer.sh [--here] [--times]
#   --here   in this tree, whose build/release should not exist, instead of a clone of it; leaves it for what follows
#   --times  prints the seconds of each step as JSON at the end, with the machine and the commit
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=false times=false
for word in "$@"; do
  case "$word" in
    --here) here=true ;;
    --times) times=true ;;
    *) echo "newcomer: unknown argument '$word'; usage: tests/install/newcomer.sh [--here] [--times]" >&2; exit 2 ;;
  esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/bin"
cat >"$work/bin/mpicxx" <<'SH'
#!/bin/sh
case "$*" in
  -showme:compile) echo "-I/nonexistent/openmpi/include" ;;
  -showme:*) echo /nonexistent/openmpi/include ;;
  *) exec c++ -I/nonexistent/openmpi/include "$@" ;;
esac
SH
chmod +x "$work/bin/mpicxx"
export PATH="$work/bin:$PATH"

steps=()
step() {  # NAME COMMAND...
  local name=$1 start=${EPOCHREALTIME/,/.}
  shift
  echo; echo "newcomer: $name"
  "$@"
  steps+=("$name=$(awk "BEGIN { printf \"%.1f\", ${EPOCHREALTIME/,/.} - $start }")")
}

tree=$root
if ! $here; then
  tree=$work/clone
  step clone git clone -q "$root" "$tree"
fi
cd "$tree"
sherd=$tree/build/release/bin/sherd
cat README.md docs/*.md docs/internals/*.md >"$work/input.txt"

step quickstart tools/quickstart
step own_text "$sherd" run -n 4 -- "$sherd" train tools/configs/shakespeare-char.toml --data "$work/input.txt" \
  --mesh dp=2,tp=2 --steps 60 --save "$work/checkpoint"
step resume "$sherd" train --resume "$work/checkpoint" --steps 80 --save "$work/checkpoint"
step sample "$sherd" sample "$work/checkpoint" --prompt "The " --tokens 60
step export "$sherd" export "$work/checkpoint" "$work/exported"
step install cmake --install build/release --prefix "$work/prefix"
step outside_programs cmake -DBUILD=build/release -DWORK="$work/installed" -P tests/install/check.cmake

$times || exit 0
python3 - "$(git rev-parse --short HEAD)" "${steps[@]}" <<'PY'
import json, os, platform, re, sys, time

model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())
family = re.search(r"cpu family\s*: (.*)", open("/proc/cpuinfo").read())
seconds = {name: float(value) for name, value in (word.split("=") for word in sys.argv[2:])}
print(json.dumps({"date": time.strftime("%Y-%m-%d"), "commit": sys.argv[1], "cpu": model[1] if model else platform.machine(),
                  "cpu_family": family[1] if family else None, "cores": len(os.sched_getaffinity(0)), "seconds": seconds,
                  "total_seconds": round(sum(seconds.values()), 1)}, indent=1))
PY

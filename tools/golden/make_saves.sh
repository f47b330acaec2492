#!/usr/bin/env bash
# Makes tests/golden/saves by an older program, so that a newer one is held to what it has promised to read: four layouts
# after three steps each, and the losses of the three that follow. Usage: tools/golden/make_saves.sh SHERD TEXT OUT
# (TEXT is tiny_text() of tests/tools/tiny_run.h in a file text.txt; committed ones are of revision 419ada4).
set -euo pipefail
sherd=$(realpath "$1") out=$(realpath -m "$3")
work=$(mktemp -d)
cp "$2" "$work/text.txt"
cd "$work"  # saves hold the paths that they were given
trap 'rm -rf "$work"' EXIT
cat >config.toml <<'TOML'
vocabulary = "chars"
seed = 7
batch = 12
threads = 1
eval_batches = 1
[model]
style = "gpt2"
layers = 1
heads = 2
width = 8
sequence = 8
dropout = 0.0
[optimizer]
lr = 1e-2
min_lr = 1e-3
warmup = 2
decay_steps = 20
TOML

# NAME RANKS FLAG...: a save of step 3 in OUT/NAME/step-000003, and OUT/NAME/losses of steps 4 to 6.
make() {
  local name=$1 ranks=$2
  shift 2
  "$sherd" run -n "$ranks" -- "$sherd" train config.toml --data text.txt "$@" --steps 3 --save "$name"
  mkdir -p "$out/$name"
  cp -r "$name/step-000003" "$out/$name/"
  "$sherd" run -n "$ranks" -- "$sherd" train --resume "$name" --steps 6 --metrics "$name.jsonl"
  python3 -c 'import json, sys
for line in sys.stdin:
    step = json.loads(line)
    if "loss" in step: print(step["step"], step["loss"])' <"$name.jsonl" >"$out/$name/losses"
}

make two_axes 4 --mesh dp=2,tp=2
make bf16 2 --param-dtype bf16
make offload 2 --offload all
make hybrid_shard_state 4 --mesh replicate=2,dp=2 --strategy hybrid_shard_state

#!/usr/bin/env bash
# Checks a bundle (tools/gpu/pack) on a GPU host, without network. Each stage ends within nine minutes ($DEADLINE, in
# seconds): what has not begun by then is left out and counts as failed.
#
#   gpu_check.sh smoke [--dry-run]   libraries, devices, every CUDA test, a training run, ceilings of the card
#   gpu_check.sh bench [--dry-run]   every gpu.* figure beside PyTorch and the card's limits
#   gpu_check.sh loss  [--dry-run]   losses of 100 steps beside PyTorch's, from the same weights
#   gpu_check.sh depth [--dry-run]   compute-sanitizer, profiles of single kernels, what the compiler made
#
# Results go to $OUT (default: build/gpu_check), after every step what there is. $PYTHON: the Python that has torch. --dry-run runs all steps on the emulated GPU, at tiny sizes, to show that
# the script, the bundle and the programs work; its figures mean nothing.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
stage=${1-}
dry=false
[ "${2-}" = --dry-run ] && dry=true
case $stage in smoke | bench | loss | depth) ;; *) sed -n '2,12p' "${BASH_SOURCE[0]}"; exit 2 ;; esac

bundle=$here
[ -d "$bundle/bin" ] || bundle=$here/../../.gpu
[ -d "$bundle/bin" ] || { echo "no bundle at $bundle: run tools/gpu/pack first" >&2; exit 2; }
bundle=$(cd "$bundle" && pwd)
out=${OUT:-$bundle/../build/gpu_check}
mkdir -p "$out"
out=$(cd "$out" && pwd)
log=$out/$stage.log
: >"$log"
steps=()
deadline=$((SECONDS + ${DEADLINE:-540}))
python=${PYTHON:-$(command -v python3 || true)}

# CUDA's libraries: the wheels of Python's nvidia packages, the toolkit, the driver.
wheels=$("$python" -c 'import nvidia,glob;print(":".join(d for r in nvidia.__path__ for d in glob.glob(r+"/*/lib")))' 2>/dev/null || true)
export LD_LIBRARY_PATH=$bundle/lib${wheels:+:$wheels}:/usr/local/cuda/lib64:/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$bundle/bin:$PATH:/usr/local/cuda/bin CUDA_DEVICE_MAX_CONNECTIONS=32
export SHERD_CACHE=$out/cache  # what was found out about this card, and nothing of another run
if $dry; then export SHERD_CUDA_LIB=$bundle/lib/emulated/libsherd_cuda_emulated.so SHERD_GPU_LIMITS=$bundle/bin/bench_gpu_limits_emulated; fi

# note NAME STATUS SECONDS: one more step is over. The file is replaced whole, so that it is never half a file.
note() {
  steps+=("{\"step\": \"$1\", \"status\": $2, \"seconds\": $3}")
  { printf '{"stage": "%s", "dry_run": %s, "date": "%s", "steps": [\n' "$stage" $dry "$(date -u +%FT%TZ)"
    for i in "${!steps[@]}"; do printf '  %s%s\n' "${steps[$i]}" "$([ "$i" -lt $((${#steps[@]} - 1)) ] && echo ,)"; done
    echo ']}'; } >"$out/$stage.json.part" && mv "$out/$stage.json.part" "$out/$stage.json"
}
# step NAME SECONDS COMMAND...: under its own limit and the stage's; a failure is noted and the next step runs.
step() {
  local name=$1 seconds=$2 start=$SECONDS status left=$((deadline - SECONDS))
  shift 2
  echo "== $name: $*" | tee -a "$log"
  if [ $left -le 0 ]; then
    echo "   FAILED: the stage's time is over"
    note "$name" 124 0
    return
  fi
  [ $seconds -le $left ] || seconds=$left
  timeout -k 5 "$seconds" "$@" >>"$log" 2>&1
  status=$?
  note "$name" $status $((SECONDS - start))
  case $status in
    0) echo "   ok, $((SECONDS - start)) s" ;;
    124 | 137) echo "   FAILED: longer than $seconds s" ;;
    *) echo "   FAILED with $status: $(tail -n 1 "$log" | cut -c1-200)" ;;
  esac
}
# A tool that is not there is no failure of ours.
have() { command -v "$1" >/dev/null || { echo "== $1 is not on this host: left out" | tee -a "$log"; note "$1" '"absent"' 0; return 1; }; }
has_torch() { "${python:-false}" -c 'import torch' 2>/dev/null; }
full() { $dry && echo "$2" || echo "$1"; }
figures() { # NAME-PREFIX SECONDS
  local python_flag=(--python "${python:-none}") smoke=()
  has_torch || python_flag=(--python none)
  $dry && smoke=(--smoke) && [ "$stage" != loss ] && python_flag=(--python none)
  step "figures $1" "$2" bash -c 'measure "$@"' measure "$1" "${python_flag[@]}" "${smoke[@]}"
}
measure() { # a missed target is a result; a figure that could not be measured is a failure
  local new
  new=$(mktemp)
  (cd "$bundle" && sherd bench "$@" --json) | tee -a "$OUT_FIGURES" "$new"
  [ -s "$new" ] && ! grep -q '"value":null' "$new"
  local status=$?
  rm -f "$new"
  return $status
}
export OUT_FIGURES=$out/figures.jsonl
export -f measure

environment() {
  cat "$bundle/manifest.json"
  cat /etc/os-release
  ldd --version | head -n 1
  uname -a
  nvidia-smi -q 2>/dev/null | head -n 120
  "$python" -c 'import torch;print("torch", torch.__version__, torch.version.cuda, torch.cuda.is_available())' 2>&1 | tail -n 1
  nvcc --version 2>/dev/null | tail -n 1
  sherd info
}
export -f environment
export bundle python

train() { # a small run on the device and the same on the host: losses agree
  local text=$out/text.txt work
  work=$(mktemp -d)
  for _ in $(seq 20); do cat "$bundle"/tools/bench/peers/*.py; done | head -c 200000 >"$text"
  for device in cpu cuda; do
    sherd train "$bundle/configs/shakespeare-char.toml" --data "$text" --steps "$(full 20 2)" --batch "$(full 8 1)" \
      --model.layers "$(full 4 1)" --model.width "$(full 256 32)" --model.sequence "$(full 128 16)" --eval-batches 1 \
      --device $device --metrics "$work/$device.jsonl" || return 1
  done
  "$python" "$bundle/results.py" same-loss "$work/cpu.jsonl" "$work/cuda.jsonl"
  local status=$?
  rm -rf "$work" "$text"
  return $status
}
export -f train full
export dry out

case $stage in
  smoke)
    step environment 30 bash -c 'environment > "$0/env.txt" 2>&1; sherd info' "$out"
    if $dry; then step tests 60 test_cuda_device --gtest_list_tests  # its kernels are nvcc's
    else step tests 240 test_cuda_device --gtest_brief=1 --gtest_output="xml:$out/tests.xml"; fi
    step train 90 bash -c train
    figures gpu.copy 30
    figures gpu.gemm.square 60
    ;;
  bench)
    figures gpu.copy 30
    figures gpu.step.llama1b 180  # what matters most comes first
    figures gpu.step.gpt124m 120
    figures gpu.gemm 100
    for op in attention cross rms adamw swiglu softmax embedding add cast transpose sum layer rope power var topk gather scatter; do
      figures gpu.$op 40
    done
    ;;
  loss)
    if has_torch; then
      figures gpu.loss.gpt124m 160
      figures gpu.loss.llama1b 370
    else
      have "a Python with torch"
    fi
    ;;
  depth)
    filter=$(full '*' 'CudaDevice.*')
    for limit in "memcheck 170" "racecheck 130" "initcheck 80"; do
      tool=${limit% *}
      if $dry; then echo "== $tool: would run compute-sanitizer --tool $tool on test_cuda_device" | tee -a "$log"
      elif have compute-sanitizer; then
        # Each block of memory alone: else what lies beyond one is another's, and no error.
        SHERD_DEVICE_MEMORY=separate step "$tool" "${limit#* }" compute-sanitizer --tool "$tool" --error-exitcode 9 --log-file "$out/sanitizer-$tool.log" \
          test_cuda_device --gtest_brief=1 "--gtest_filter=$filter"
      fi
    done
    profiler=(ncu --clock-control none --csv --section SpeedOfLight --launch-count 40)
    if $dry; then profiler=(env); fi
    if have "${profiler[0]}"; then
      step profiles 110 bash -c 'for op in rms_norm.backward swiglu.backward cross_entropy.forward adamw attention.forward; do echo "$op 2"; done |
        "$@" > "$0/ncu.csv"; cat "$0/ncu.csv"; ! grep -q "\"error\"" "$0/ncu.csv"' "$out" \
        "${profiler[@]}" sherd bench --child gpu_op --small "$dry"
    fi
    if ! $dry && have cuobjdump; then
      step instructions 45 bash -c 'cuobjdump -sass "$0/lib/libsherd_cuda.so" | grep -oE "HMMA[.0-9A-Z]*|LDG\.E\.128|LDSM[.0-9A-Z]*" | sort | uniq -c' "$bundle"
    fi
    ;;
esac

[ -f "$OUT_FIGURES" ] && [ -n "$python" ] && "$python" "$bundle/results.py" table "$OUT_FIGURES"
failed=$(printf '%s\n' "${steps[@]}" | grep -c '"status": [1-9]')
echo "$stage: ${#steps[@]} steps, $failed failed; results in $out"
[ "$failed" -eq 0 ]

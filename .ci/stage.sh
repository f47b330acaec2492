# The stages of .ci/run, which sources this; tools/weight.toml says how long each may take.
#   measure_reference      compiles .ci/reference.cpp three times, before the stages: the speed of this machine
#   stage NAME COMMAND...  runs the command, says how long it took, and has its status
# However the run ends, .ci/stages.py prints all stages beside their budgets and writes build/ci_stages.json. A run that
# nothing else has failed fails there if a stage was over its budget.
ci_folder=$(dirname "${BASH_SOURCE[0]}")
ci_reference=   # seconds of each compilation
ci_running=     # the stage that runs, and since when
ci_start=
ci_stages=()    # NAME=HUNDREDTHS of a second

ci_clock() {  # hundredths of a second that no change of the date moves
  local up
  read -r up _ </proc/uptime
  echo "$((10#${up/./}))"
}

measure_reference() {
  ci_reference=$(python3 "$ci_folder/stages.py" reference)
  echo "ci: the reference took $ci_reference s to compile"
}

stage() {
  ci_running=$1
  shift
  echo; echo "ci: stage $ci_running"
  ci_start=$(ci_clock)
  "$@"  # under errexit a failure ends the run here, within functions too, which `"$@" || ...` would not
  local status=$?
  end_stage
  return $status
}

end_stage() {
  local took=$(($(ci_clock) - ci_start))
  ci_stages+=("$ci_running=$took")
  echo "ci: stage $ci_running took $((took / 100)).$((took / 10 % 10)) s (the reference: ${ci_reference:-not measured})"
  ci_running=
}

report_stages() {
  local status=$? failed=$ci_running
  if [ -n "$failed" ]; then
    end_stage
    [ "$status" -ne 0 ] || status=130  # a signal ends the run, and no command has failed
  fi
  python3 "$ci_folder/stages.py" report --status "$status" --seconds "$SECONDS" --failed "$failed" \
    --reference "$ci_reference" "${ci_stages[@]}" || [ "$status" -ne 0 ] || status=1
  exit "$status"
}
trap report_stages EXIT

#!/bin/sh
# keep_ptxas_report.sh COMMAND...: runs a CUDA compiler; what ptxas reports of each kernel goes to OBJECT.ptxas, and only
# the rest is shown.
previous=
object=/dev/null
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
"$@" 2> "$object.ptxas"
status=$?
grep -v -E '^ptxas info|^    [0-9]+ bytes stack frame' "$object.ptxas" >&2
exit $status

"""Races in shared memory: suites under compute-sanitizer's racecheck, the riskiest first, as many as there is time for."""

import json
import os
import re
import sys
import time

import process
from host import call, word

SUITES = ["CudaIndex", "CudaNorm", "Kernels/CudaAttention", "CudaSoftmax", "CudaReduce", "CudaLoss"]
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazard")


def main():
    process.stop_on_signals()
    of = call()
    until = time.monotonic() + of.seconds - 3
    hazards, checked = 0, []
    for suite in SUITES:
        log = of.folder / "suites" / f"races-{suite.replace('/', '_')}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text("")
        ended = process.run(["compute-sanitizer", "--tool", "racecheck", word("tests", of.dry), f"--gtest_filter={suite}.*"],
                            until - time.monotonic(), log, environment={**os.environ, "SHERD_DEVICE_MEMORY": "separate"})
        text = log.read_text(errors="replace")
        found = SUMMARY.search(text)
        if ended.timed_out:
            break
        if not found:
            print("---- races", f"{suite}: status {ended.status} without a summary", *text.splitlines()[-20:], sep="\n")
            return 1
        hazards, checked = hazards + int(found[1]), checked + [suite]
        print(json.dumps({"name": "races.hazards", "value": hazards, "suites": checked}), flush=True)
        if int(found[1]):
            print("---- races", f"{suite}: {found[1]} hazards",
                  *[line for line in text.splitlines() if line.startswith("=========")][:40], sep="\n")
            return 1
    print("---- races", f"{', '.join(checked) or 'no suite'} in {of.seconds:.0f} s", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

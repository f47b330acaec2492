#!/usr/bin/env python3
"""Alters the texts of captured programs at random and reads them: each is refused with line and column, or is another
program. Nothing may crash or hang.

Usage: tools/soak/programs.py [--tests build/release/bin/test_compile] [--minutes 10] [--seed N]

Runs the fuzz tests of tests/compile in rounds of 30 s, each from a seed of its own: of steps of one rank, and of sharded
ones. A round fails when a test does, is killed, or takes more than twice its time and a minute. The seed of a failed round repeats it: --seed S --minutes 0.5.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import time

ROUND = 30.0
# The sharded test spends its seconds on each of two steps.
TESTS = "ProgramText.AnAlteredText*"
PARTS = 3


def run_round(tests, seed, seconds):
    """What went wrong, or None."""
    environment = dict(os.environ, SHERD_SOAK_SEED=str(seed), SHERD_SOAK_SECONDS=str(seconds / PARTS))
    try:
        run = subprocess.run([tests, f"--gtest_filter={TESTS}"], env=environment, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", timeout=2 * seconds + 60)
    except subprocess.TimeoutExpired:
        return f"hangs for more than {2 * seconds + 60:.0f} s"
    if run.returncode == 0 and "[  PASSED  ] 2 tests." in run.stdout:
        print(*(line for line in run.stdout.splitlines() if line.startswith("seed ")), sep="\n", flush=True)
        return None
    return f"status {run.returncode}\n{run.stdout[-4000:]}"


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", default=str(root / "build/release/bin/test_compile"))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    rounds = failed = 0
    while (left := end - time.monotonic()) > 1:
        failure = run_round(options.tests, options.seed + rounds, min(ROUND, left))
        if failure is not None:
            failed += 1
            print(f"seed {options.seed + rounds}: {failure}", flush=True)
        rounds += 1
    print(f"soak: {failed} of {rounds} rounds failed, first seed {options.seed}")
    sys.exit(1 if failed or not rounds else 0)


if __name__ == "__main__":
    main()

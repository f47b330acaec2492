#!/usr/bin/env python3
"""Holds the stages of .ci/run against [ci] of tools/weight.toml: what .ci/stage.sh calls.

Usage: stages.py reference    compiles reference.cpp three times by g++ -O2, without a compiler cache, and prints the seconds
       stages.py report ...   prints each stage beside its budget, writes build/ci_stages.json; status 1 if one is over

A budget is seconds on the machine whose `reference` the file has. Here it is that many times longer as the reference is
(but for `fixed` seconds, which a stage takes everywhere), and a stage fails that takes more than 1.2 times as long.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROWS = "tools/weight.toml"
MARGIN = 1.2
COMPILATIONS = 3


def read_budgets(root):
    """Returns [ci] of tools/weight.toml; ends the program with a line that says what is wrong with it."""
    try:
        ci = tomllib.loads((root / ROWS).read_text(encoding="utf-8"))["ci"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        sys.exit(f"ci: {ROWS} has no budgets of stages: {error!r}")
    ci = {"seconds": {}, "fixed": {}, "network": [], "cores": 1, **ci}
    numbers = {"reference": ci.get("reference"), **ci["seconds"], **ci["fixed"]}
    for name, number in numbers.items():
        if not isinstance(number, (int, float)) or not number > 0:
            sys.exit(f"ci: {ROWS}: {name} is {number!r}; it is a number of seconds above 0")
    return ci


def compile_reference():
    """Returns the seconds of each compilation."""
    environment = {**os.environ, "CCACHE_DISABLE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = ["g++", "-std=c++20", "-O2", "-c", str(HERE / "reference.cpp"), "-o", f"{folder}/reference.o"]
        seconds = []
        for _ in range(COMPILATIONS):
            start = time.monotonic()
            try:
                subprocess.run(command, check=True, env=environment)
            except (OSError, subprocess.CalledProcessError) as error:
                sys.exit(f"ci: the reference does not compile ({error}); tools/setup installs g++")
            seconds.append(time.monotonic() - start)
    return seconds


def judge(ci, seconds_of, reference):
    """Returns what is known of each stage: {name, seconds, budget here or None, share of it, over}."""
    ratio = statistics.median(reference) / ci["reference"] if reference else None
    judged = ratio is not None and len(os.sched_getaffinity(0)) >= ci["cores"]
    stages = []
    for name, seconds in seconds_of.items():
        allowed = ci["seconds"].get(name)
        fixed = min(ci["fixed"].get(name, 0), allowed or 0)
        budget = fixed + (allowed - fixed) * ratio if allowed and ratio else None
        share = seconds / budget if budget else None
        stages.append({"name": name, "seconds": round(seconds, 2), "zen5_budget": allowed,
                       "budget": budget and round(budget, 1), "share": share and round(share, 3),
                       "over": bool(judged and share and share > MARGIN)})
    return ratio, judged, stages


def print_table(ratio, stages, ci):
    width = max(len(stage["name"]) for stage in [*stages, {"name": "stage"}])
    print(f"ci: {'stage':{width}} {'seconds':>9} {'budget':>9} {'share':>6}")
    for stage in stages:
        if stage["budget"]:
            rest = f"{stage['budget']:9.1f} {stage['share']:6.2f}{'  over' if stage['over'] else ''}"
        else:
            rest = "not judged: it waits for the network" if stage["name"] in ci["network"] else "no budget"
        print(f"ci: {stage['name']:{width}} {stage['seconds']:9.1f} {rest}")
    if ratio:
        print(f"ci: the reference takes {ratio:.2f} times the {ci['reference']} s of {ROWS}; budgets are scaled by that")
    not_run = [name for name in ci["seconds"] if name not in {stage["name"] for stage in stages}]
    if not_run:
        print(f"ci: not run: {', '.join(not_run)}")


def report(root, options):
    """Prints and writes what is known; returns whether all stages kept their budgets."""
    ci = read_budgets(root)
    seconds_of = {}
    for name, _, took in (text.rpartition("=") for text in options.stages):
        seconds_of[name] = seconds_of.get(name, 0) + int(took) / 100
    reference = [float(text) for text in options.reference.split()]
    ratio, judged, stages = judge(ci, seconds_of, reference)
    print()
    print_table(ratio, stages, ci)
    if not judged:
        print("ci: no stage is judged: " + ("the reference was not measured" if ratio is None else
                                            f"budgets are of {ci['cores']} cores, more than there are"))
    faults = [f"stage {options.failed} failed with status {options.status}"] if options.failed else []
    faults += [f"stage {stage['name']} took {stage['seconds']:.0f} s, more than {MARGIN} of its {stage['budget']:.0f} s; "
               f"{ROWS} says who may raise its row" for stage in stages if stage["over"]]
    faults += [f"stage {stage['name']} has no row in [ci.seconds] of {ROWS}" for stage in stages
               if stage["zen5_budget"] is None and stage["name"] not in ci["network"]]
    for fault in faults:
        print(f"ci: {fault}")
    if not faults and options.status == 0:
        print(f"ci: passed in {options.seconds} s")
    (root / "build").mkdir(exist_ok=True)
    (root / "build" / "ci_stages.json").write_text(json.dumps(
        {"status": options.status, "failed": options.failed or None, "cores": len(os.sched_getaffinity(0)),
         "reference": {"seconds": reference, "zen5_seconds": ci["reference"], "ratio": ratio and round(ratio, 4)},
         "seconds": options.seconds, "stages": stages}, indent=1) + "\n", encoding="utf-8")
    return not faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("reference")
    reporter = commands.add_parser("report")
    reporter.add_argument("--status", type=int, required=True)
    reporter.add_argument("--seconds", type=int, required=True, help="of the whole run")
    reporter.add_argument("--failed", default="", help="the stage that ended the run")
    reporter.add_argument("--reference", default="", help="the seconds that `stages.py reference` has printed")
    reporter.add_argument("stages", nargs="*", metavar="NAME=HUNDREDTHS")
    options = parser.parse_args()
    root = HERE.parent
    if options.command == "report":
        return 0 if report(root, options) else 1
    read_budgets(root)
    print(" ".join(f"{seconds:.2f}" for seconds in compile_reference()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

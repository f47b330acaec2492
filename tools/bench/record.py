#!/usr/bin/env python3
"""Measures the CPU's figures of `sherd bench`, keeps them in a results file, and prints them as tables for the READMEs.

usage: record.py                                all of GROUPS, into results/DATE-CPU-CORES.json; prints both tables
       record.py FILE.json PREFIX...            only the figures named so; they replace those of that name in the file
       record.py FILE.json --table              measures nothing
       [--sherd PROGRAM] [--python PYTHON]...   other than build/release/bin/sherd and build/venv; the first Python is judged

Tables begin with the CPU's name and the versions of what was measured. Leave the machine alone meanwhile.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Figures of a group read the same contests, so they are measured in one call. The file is written after each.
GROUPS = [["step", "flops", "rss"], ["fsdp", "ddp", "tp", "memory"], ["units"], ["shm"], ["overlap", "hsdp"],
          ["dispatch", "dtensor", "program"], ["ghost"], ["binding"], ["loss.mini", "loss.llama"], ["gemm"]]
# The README's table: what a row says, and the figures in it.
SUMMARY = [
    ("training step, 0.8 M parameters, f32, 1 and 2 threads", ["step.mini.f32.t1", "step.mini.f32.t2"]),
    ("the same in bf16", ["step.mini.bf16.t1", "step.mini.bf16.t2"]),
    ("training step, 10.8 M parameters, f32, 1 and 2 threads", ["step.bigger.f32.t1", "step.bigger.f32.t2"]),
    ("the same, nothing captured or compiled", ["step.bigger.f32.t1.eager", "step.bigger.f32.t2.eager"]),
    ("the same as a share of the cores' multiply-add peak", ["flops.bigger.f32.t1", "flops.bigger.f32.t2"]),
    ("the same in bf16", ["step.bigger.bf16.t1", "step.bigger.bf16.t2"]),
    ("the same model's growth of resident memory, f32", ["rss.bigger"]),
    ("with 8 blocks, recompute selective and full beside none: time", ["step.bigger8.selective", "step.bigger8.full"]),
    ("the same: peak of activations", ["step.bigger8.selective.activations", "step.bigger8.full.activations"]),
    ("the same model, fully sharded over 2 ranks of one thread beside FSDP2, f32 and bf16", ["fsdp.bigger.r2", "fsdp.bigger.bf16.r2"]),
    ("the same under no_shard beside DDP, f32 and bf16", ["ddp.bigger.r2", "ddp.bigger.bf16.r2"]),
    ("fully sharded beside our no_shard, f32", ["fsdp.bigger.r2.no_shard"]),
    ("its state per rank, between steps and at the peak, f32", ["memory.bigger.r2.persistent", "memory.bigger.r2"]),
    ("32 small units, forward and backward: not sharded, sharded on 1 and on 2 ranks", ["units.plain", "units.r1", "units.r2"]),
    ("what fully_shard adds to each of these units, on 1 and on 2 ranks", ["units.r1.overhead", "units.r2.overhead"]),
    ("all_gather, reduce_scatter of 64 MB between 2 processes", ["shm.all_gather.64MB", "shm.reduce_scatter.64MB"]),
    ("all_gather of 64 KB", ["shm.all_gather.64KB"]),
    ("exposed communication on a link that takes half of the compute time: with and without prefetch, eager",
     ["overlap.prefetch_on", "overlap.prefetch_off", "overlap.eager"]),
    ("hybrid_shard on 2 x 2 ranks, the outer link ten times slower, beside full_shard", ["hsdp.overlap"]),
    ("the same as a share of what the links allow", ["hsdp.overlap.share"]),
    ("one-element add through the dispatcher, plain and recorded", ["dispatch.plain", "dispatch.recording"]),
    ("overhead of an op on distributed tensors: cached plan, new plan", ["dtensor.hit", "dtensor.miss"]),
    ("the 10.8 M model, tensor parallel over 2 ranks of one thread", ["tp.bigger.r2"]),
    ("one of 512 ranks of an 8 B model as a ghost: built with a first step, a further step", ["ghost.llama8b.first", "ghost.llama8b.step"]),
    ("losses of the 0.8 M model over 100 steps: mean distance from PyTorch's", ["loss.mini.f32"]),
]


def output(*command):
    """What a program prints; nothing where it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def cpu_name():
    names = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return names[0] if names else os.uname().machine


def versions(pythons):
    """Of the compiler and of what stands beside us: {"torch 2.15.0": "MKL 2024.2, oneDNN 3.13.3", ...}."""
    found = {"C++": output("c++", "--version").partition("\n")[0], "system": output("lsb_release", "-ds").strip() or os.uname().release}
    for python in pythons:
        told = output(python, str(ROOT / "tools/bench/peers/settings.py"))
        if told:
            torch = json.loads(told)
            found[torch["peer"]] = ", ".join(f"{name} {version}" for name, version in torch["libraries"].items())
    if mpi := re.search(r"mpirun \(Open MPI\) (\S+)", output("mpirun", "--version")):
        found["Open MPI"] = mpi[1]
    return {name: version for name, version in found.items() if version}


def machine(sherd, pythons):
    lines = dict(line.split(None, 1) for line in output(sherd, "info").splitlines() if len(line.split(None, 1)) == 2)
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores, kernels {lines.get('kernels', '').strip()}",
        "sherd": lines.get("sherd", "").strip(),
        "versions": versions(pythons),
    }


def measure(sherd, prefixes, pythons):
    command = [sherd, "bench", *prefixes, "--json", "--python", pythons[0]]
    for python in pythons[1:]:
        command += ["--peer-python", python]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    figures = [json.loads(line) for line in run.stdout.splitlines()]
    if not figures:
        sys.exit(f"{' '.join(command)} measured nothing")
    commit = output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD").strip()
    changed = output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    for figure in figures:
        figure["commit"] = commit + (", changed" if changed else "")
    return figures


def number(value):
    return "" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def heading(results):
    about = [results["date"], results["cpu"], results.get("compiler", "")]
    about += [f"{name}: {version}" for name, version in results.get("versions", {}).items()]
    yield "; ".join(filter(None, about)) + "."
    yield ""


def summary(results):
    """The README's table."""
    figures = {f["name"]: f for f in results["figures"]}
    yield from heading(results)
    yield "| figure | measured | beside |"
    yield "|---|---|---|"
    for text, names in SUMMARY:
        row = [figures[name] for name in names if name in figures]
        if len(row) < len(names):
            continue
        beside = {}
        for figure in row:
            for peer in figure.get("peers", []):
                beside.setdefault(peer["peer"], []).append(number(peer["peer_value"]))
            if figure["limit"] is not None and not figure["name"].startswith("flops"):  # whose limit is 1
                beside.setdefault("limit", []).append(number(figure["limit"]))
        values = ", ".join(number(figure["value"]) or "not measured" for figure in row)
        others = "; ".join(f"{name}: {', '.join(numbers)}" for name, numbers in beside.items())
        yield f"| {text} | {values} {row[0]['unit']} | {others} |"


def table(results):
    """Every figure."""
    yield from heading(results)
    settings = {f"{p['peer']}: {p['settings']}" for f in results["figures"] for p in f.get("peers", []) if ";" not in p.get("settings", ";")}
    yield f"Settings: {'; '.join(sorted(settings))}."
    yield ""
    yield "| figure | measured | peers | ratio | limit | target | |"
    yield "|---|---|---|---|---|---|---|"
    for f in results["figures"]:
        others = ", ".join(f"{p['peer']}: {number(p['peer_value'])}" for p in f.get("peers", []))
        passed = {True: "pass", False: "missed", None: ""}[f["pass"]]
        value = "not measured" if f["value"] is None else f"{number(f['value'])} {f['unit']}"
        yield f"| {f['name']} | {value} | {others} | {number(f['ratio'])} | {number(f['limit'])} | {f.get('rule', '')} | {passed} |"


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    parser.add_argument("file", type=pathlib.Path, nargs="?")
    parser.add_argument("prefixes", nargs="*")
    parser.add_argument("--sherd", default=str(ROOT / "build/release/bin/sherd"))
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--table", action="store_true")
    options = parser.parse_intermixed_args()
    pythons = options.python or [os.environ.get("SHERD_VENV", str(ROOT / "build/venv")) + "/bin/python"]
    if options.file is None:
        name = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
        options.file = ROOT / "tools/bench/results" / f"{datetime.date.today()}-{name}-{len(os.sched_getaffinity(0))}-cores.json"
    results = json.loads(options.file.read_text()) if options.file.exists() else {"figures": []}
    groups = [] if options.table else [options.prefixes] if options.prefixes else GROUPS
    for i, prefixes in enumerate(groups, 1):
        print(f"record: {' '.join(prefixes)} ({i} of {len(groups)})", file=sys.stderr)
        known = {f["name"]: f for f in results["figures"]} | {f["name"]: f for f in measure(options.sherd, prefixes, pythons)}
        results = {**machine(options.sherd, pythons), "figures": list(known.values())}
        options.file.write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join([*summary(results), "", *table(results)]))
    print(f"record: {options.file}", file=sys.stderr)


main()

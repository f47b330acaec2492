#!/usr/bin/env python3
"""Runs `sherd bench` and keeps its figures in a results file, beside what machine they are of.

usage: record.py FILE.json [--sherd PROGRAM] [--peer-python PYTHON]... PREFIX...   measures; replaces figures of that name
       record.py FILE.json --table                                               prints them as a Markdown table

Several calls may fill one file, so that each stays short and the machine quiet.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def machine(sherd):
    info = subprocess.run([sherd, "info"], capture_output=True, text=True, check=True).stdout
    lines = dict(line.split(None, 1) for line in info.splitlines() if not line.startswith(("instruction", "matrix", "process")))
    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True).stdout.splitlines()[:1]
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": lines.get("cpu", "").strip(),
        "sherd": lines.get("sherd", "").strip(),
        "compiler": compiler[0] if compiler else "",
    }


def measure(sherd, prefix, pythons):
    command = [sherd, "bench", prefix, "--json"]
    for python in pythons:
        command += ["--peer-python", python]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    figures = [json.loads(line) for line in run.stdout.splitlines()]
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    for figure in figures:
        figure["commit"] = commit.stdout.strip()
    if not figures:
        sys.exit(f"{' '.join(command)} measured nothing")
    return figures


def number(value):
    return "" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(results):
    peers = {p["peer"] + (f" ({p['settings']})" if "settings" in p else "") for f in results["figures"] for p in f.get("peers", [])}
    yield f"{results['date']}, {results['cpu']}, {results['compiler']}. Peers: {'; '.join(sorted(peers))}."
    yield ""
    yield "| figure | measured | peers | ratio | limit | target | |"
    yield "|---|---|---|---|---|---|---|"
    for f in results["figures"]:
        others = ", ".join(f"{p['peer'].split()[-1] if 'torch' in p['peer'] else p['peer']}: {number(p['peer_value'])}" for p in f.get("peers", []))
        passed = {True: "pass", False: "missed", None: ""}[f["pass"]]
        value = "not measured" if f["value"] is None else f"{number(f['value'])} {f['unit']}"
        yield f"| {f['name']} | {value} | {others} | {number(f['ratio'])} | {number(f['limit'])} | {f.get('rule', '')} | {passed} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("prefixes", nargs="*")
    parser.add_argument("--sherd", default=str(ROOT / "build/release/bin/sherd"))
    parser.add_argument("--peer-python", action="append", default=[])
    parser.add_argument("--table", action="store_true")
    options = parser.parse_intermixed_args()
    results = json.loads(options.file.read_text()) if options.file.exists() else {"figures": []}
    for prefix in options.prefixes:
        fresh = measure(options.sherd, prefix, options.peer_python)
        known = {f["name"]: f for f in results["figures"]} | {f["name"]: f for f in fresh}
        results = {**machine(options.sherd), "figures": list(known.values())}
        options.file.write_text(json.dumps(results, indent=1) + "\n")
    if options.table:
        print("\n".join(table(results)))


main()

"""Every program of tools/bench/peers that needs no GPU runs under this Python's torch and answers `sherd bench`.

Compilation is switched off, as it takes a minute each: what is compiled is the same program.
Usage: peers_test.py PROGRAM NAME-PREFIX...
"""
import json
import os
import subprocess
import sys

program, *prefixes = sys.argv[1:]
environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1"}
run = subprocess.run([program, "bench", *prefixes, "--smoke", "--json", "--python", sys.executable],
                     env=environment, stdout=subprocess.PIPE, text=True, check=False)
figures = [json.loads(line) for line in run.stdout.splitlines()]
assert figures and run.returncode == 0, run
bad = False
for figure in figures:
    peers = [p for p in figure.get("peers", []) if "torch" in p["peer"]]
    if figure["name"].startswith("loss."):  # what it is compared with is part of the value: torch, or our own bf16
        ok = figure["value"] < 1000 and ("torch" in figure.get("note", "") or figure["unit"] == "nats")
    else:
        failed = any("failed" in p.get("settings", "") for p in peers)
        ok = peers and not failed and figure["ratio"] > 0 and "bench/peers" not in figure.get("note", "")
    print("ok " if ok else "BAD", json.dumps(figure))
    bad = bad or not ok
sys.exit(bad)

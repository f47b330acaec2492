#!/usr/bin/env python3
"""Repeats the README's Shakespeare figures: nanoGPT's CPU recipe on one rank with three seeds, then seed 1 on two and
four ranks, then two ranks once more to compare bits.

Usage: tools/bench/shakespeare.py INPUT.txt [--sherd build/release/bin/sherd] [--out DIR]
INPUT.txt is Karpathy's tinyshakespeare. Takes about a quarter of an hour on two cores.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMES = ("tokens_per_second", "step_seconds", "exposed_comm_seconds", "exposed_transfer_seconds",
         "exposed_skew_seconds")


def run(args, ranks, seed, name):
    """Trains once; returns the metrics lines of the steps."""
    metrics = args.out / f"{name}.jsonl"
    sherd = str(args.sherd)
    train = [sherd, "train", str(ROOT / "tools/configs/shakespeare-char.toml"), "--data", args.input, "--seed", str(seed),
             "--metrics", str(metrics)]
    command = train if ranks == 1 else [sherd, "run", "-n", str(ranks), "--", *train]
    with open(args.out / f"{name}.log", "w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    lines = [json.loads(line) for line in open(metrics)]
    return [line for line in lines if "step" in line]


def without_times(lines):
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def relative(a, b, steps):
    return max(abs(x["loss"] - y["loss"]) / x["loss"] for x, y in zip(a[:steps], b[:steps]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("--sherd", type=pathlib.Path, default=ROOT / "build/release/bin/sherd")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/shakespeare")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    failed = []

    def report(text, ok):
        print(f"{text}  {'ok' if ok else 'MISSED'}", flush=True)
        if not ok:
            failed.append(text)

    one = {seed: run(args, 1, seed, f"r1-seed{seed}") for seed in (1, 2, 3)}
    val = {seed: lines[-1]["val_loss"] for seed, lines in one.items()}
    for seed, loss in val.items():
        report(f"1 rank, seed {seed}: validation loss {loss:.4f} (each <= 1.95)", loss <= 1.95)
    mean = sum(val.values()) / 3
    report(f"mean of seeds 1, 2, 3: {mean:.4f} (<= 1.93)", mean <= 1.93)

    sharded = {}
    for ranks in (2, 4):
        lines = sharded[ranks] = run(args, ranks, 1, f"r{ranks}-seed1")
        for steps, limit in ((5, 1e-5), (100, 1e-3)):
            worst = relative(one[1], lines, steps)
            report(f"{ranks} ranks: first {steps} losses within {worst:.1e} of one rank (<= {limit:.0e})", worst <= limit)
        gap = abs(lines[-1]["val_loss"] - val[1])
        report(f"{ranks} ranks: validation loss {lines[-1]['val_loss']:.4f}, {gap:.4f} from one rank (<= 0.02)", gap <= 0.02)

    again = run(args, 2, 1, "r2-seed1-again")
    report("2 ranks again: every line but its times is the same", without_times(again) == without_times(sharded[2]))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

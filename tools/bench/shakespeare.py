#!/usr/bin/env python3
"""Repeats the README's Shakespeare figures: nanoGPT's CPU recipe on one rank with three seeds, then seed 1 on two and
four ranks, then two ranks once more to compare bits.

Usage: tools/bench/shakespeare.py INPUT.txt [--sherd build/release/bin/sherd] [--out DIR] [--int8] [--f16] [--steps N]
INPUT.txt is Karpathy's tinyshakespeare. Takes about a quarter of an hour on two cores.

With --int8 or --f16 it compares precisions instead, on two ranks from seed 1: the validation loss after N steps (2000)
in bf16 beside that with gathers and reductions in 8 bits, and beside that in f16 with a loss scale.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMES = ("tokens_per_second", "step_seconds", "exposed_comm_seconds", "exposed_transfer_seconds",
         "exposed_skew_seconds")
BF16 = ["--param-dtype", "bf16"]
BESIDE_BF16 = {"int8": [*BF16, "--gather", "int8", "--reduce", "int8"], "f16": ["--param-dtype", "f16"]}


def run(args, ranks, seed, name, flags=()):
    """Trains once; returns the metrics lines of the steps."""
    metrics = args.out / f"{name}.jsonl"
    sherd = str(args.sherd)
    train = [sherd, "train", str(ROOT / "tools/configs/shakespeare-char.toml"), "--data", args.input, "--seed", str(seed),
             "--metrics", str(metrics), *flags]
    command = train if ranks == 1 else [sherd, "run", "-n", str(ranks), "--", *train]
    with open(args.out / f"{name}.log", "w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    lines = [json.loads(line) for line in open(metrics)]
    return [line for line in lines if "step" in line]


def without_times(lines):
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def relative(a, b, steps):
    return max(abs(x["loss"] - y["loss"]) / x["loss"] for x, y in zip(a[:steps], b[:steps]))


def compare_precisions(args, forms, report):
    def train(form, flags):
        return run(args, 2, 1, f"r2-{form}", [*flags, "--steps", str(args.steps)])[-1]["val_loss"]
    expected = train("bf16", BF16)
    for form in forms:
        loss = train(form, BESIDE_BF16[form])
        gap = abs(loss - expected)
        report(f"2 ranks, {args.steps} steps: validation loss {expected:.4f} in bf16, {loss:.4f} with {form}, "
               f"{gap:.4f} apart (<= 0.02)", gap <= 0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("--sherd", type=pathlib.Path, default=ROOT / "build/release/bin/sherd")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/shakespeare")
    for form in BESIDE_BF16:
        parser.add_argument(f"--{form}", action="append_const", const=form, dest="forms")
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    failed = []

    def report(text, ok):
        print(f"{text}  {'ok' if ok else 'MISSED'}", flush=True)
        if not ok:
            failed.append(text)

    if args.forms:
        compare_precisions(args, args.forms, report)
        sys.exit(1 if failed else 0)

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

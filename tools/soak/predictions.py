#!/usr/bin/env python3
"""Trains 30 configurations and compares what `sherd train` has predicted of each with what it has measured.

Usage: tools/soak/predictions.py [--sherd build/release/bin/sherd] [--seeds N] [--only I] [--calibrate] [--results FILE]

Of an idle machine with at least as many CPUs as ranks take part, after `sherd calibrate --ranks` 1, 2, 3 and 4,
which --calibrate runs first. Configuration i is drawn by the seed SEED + i: a GPT or a Llama, 1 to 4 ranks, strategy, tp,
recompute, units, f32 or bf16, one of three shaped links or none. A run whose own steps spread over more than 10 % is
made again, up to three times, and stays in the count. Prints a line for each, then of all: the share of pairs that
differ by more than 10 % and are in the predicted order, the median and the worst error of step time where ranks do not
outnumber CPUs, and how many ranks' peaks were predicted to the byte.
"""
import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SEED = 3600
LIMIT = 300  # seconds of a run
LINKS = ["", "", "1e9,20e-6", "2e8,0", "dp=4e8,0;replicate=5e7,0"]
STEP = re.compile(r"; ([\d.e+-]+) ms a step predicted, ([\d.e+-]+) measured")
JITTER = re.compile(r"p50 ([\d.]+)[^\n]*?mad ([\d.]+)", re.I)


@dataclasses.dataclass
class Result:
    name: str
    ranks: int
    predicted: float = 0
    measured: float = 0
    spread: float = 0
    differs: bool = False
    failure: str = ""

    def error(self):
        return self.predicted / self.measured - 1


def draw(seed):
    """The ranks and the flags of a configuration."""
    pick = random.Random(seed)
    ranks = pick.choice([1, 2, 2, 2, 3, 4, 4])
    style = pick.choice(["gpt2", "llama"])
    width = pick.choice([128, 192, 256, 384])
    tp = ranks % 2 == 0 and pick.random() < 0.25
    strategy = pick.choice(["full_shard", "shard_grad_op", "no_shard", "shard_optimizer"] + ["hybrid_shard"] * (ranks == 4))
    link = pick.choice(LINKS[:4] if strategy != "hybrid_shard" else LINKS) if ranks > 1 else ""
    flags = {"model.style": style, "model.width": width, "model.heads": 2 * (width // 128), "model.layers": pick.choice([2, 3, 4]),
             "model.sequence": pick.choice([64, 128, 256]), "batch": ranks * pick.choice([1, 2, 4]),
             "recompute": pick.choice(["none", "none", "selective", "full"]),
             "units": pick.choice(["block", "block", "fine", "coarse"])}
    if ranks > 1:
        flags |= {"fully-shard": "true", "param-dtype": pick.choice(["f32", "bf16"]),
                  "strategy": strategy if not tp else "full_shard"}
        flags["mesh"] = ("replicate=2,dp=2" if strategy == "hybrid_shard" and not tp else
                         f"dp={ranks // 2},tp=2" if tp else f"dp={ranks}")
        if link and not (tp and "replicate" in link):
            flags["link"] = link
    return ranks, [word for key, value in flags.items() for word in (f"--{key}", str(value))]


def run_once(sherd, ranks, flags, data):
    command = [sherd, "train", "--data", data, "--steps", "30", "--eval-batches", "1", "--vocabulary", "bytes", *flags]
    if ranks > 1:
        command = [sherd, "run", "-n", str(ranks), "--", *command]
    try:
        end = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return 124, "", f"took more than {LIMIT} s"
    return end.returncode, end.stdout, end.stderr


def run(sherd, index, data):
    ranks, flags = draw(SEED + index)
    result = Result(" ".join(flags), ranks)
    for _ in range(3):
        status, out, err = run_once(sherd, ranks, flags, data)
        step = STEP.search(out)
        if status != 0 or not step:
            result.failure = ("its ranks are not calibrated: give --calibrate" if status == 0
                              else (err.strip().splitlines() or [f"status {status}"])[-1])
            return result
        result.predicted, result.measured = float(step[1]), float(step[2])
        result.differs = "DIFFERS" in out
        jitter = JITTER.search(out)
        result.spread = float(jitter[2]) / float(jitter[1]) if jitter else 0
        if result.spread <= 0.1:
            break
    return result


def summary(results, cpus):
    known = [r for r in results if not r.failure]
    pairs = [(a, b) for a, b in itertools.combinations(known, 2)
             if max(a.measured, b.measured) > 1.1 * min(a.measured, b.measured)]
    ordered = sum((a.measured < b.measured) == (a.predicted < b.predicted) for a, b in pairs)
    errors = [abs(r.error()) for r in known if r.ranks <= cpus] or [0]
    return {"runs": len(known), "failed": len(results) - len(known), "pairs": len(pairs),
            "ordered_percent": 100 * ordered / max(1, len(pairs)), "median_percent": 100 * statistics.median(errors),
            "worst_percent": 100 * max(errors), "peaks_that_differ": sum(r.differs for r in known)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sherd", default=str(ROOT / "build/release/bin/sherd"))
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--only", type=int, default=None)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--results", type=pathlib.Path)
    args = parser.parse_args()
    if args.calibrate:
        for ranks in (1, 2, 3, 4):
            subprocess.run([args.sherd, "calibrate", "--ranks", str(ranks)], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as data:
        letters = random.Random(SEED)
        data.write("".join(chr(33 + letters.randrange(65)) for _ in range(1 << 17)))
        data.flush()
        results = []
        for index in range(args.seeds) if args.only is None else [args.only]:
            result = run(args.sherd, index, data.name)
            results.append(result)
            print(f"{index:3} {result.ranks} ranks " + (f"FAILED {result.failure}" if result.failure else
                  f"{result.measured:8.2f} ms, predicted {result.predicted:8.2f} ({100 * result.error():+6.1f} %), spread "
                  f"{100 * result.spread:4.1f} %{', peaks DIFFER' if result.differs else ''}") + f"  {result.name}",
                  flush=True)
    totals = summary(results, os.cpu_count())
    print(json.dumps(totals))
    if args.results:
        args.results.write_text(json.dumps({"summary": totals, "runs": [dataclasses.asdict(r) for r in results]}, indent=1))
    return int(totals["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())

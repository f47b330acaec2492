#!/usr/bin/env python3
"""Trains captured steps within memory budgets: equal bits, bytes as predicted, or a refusal whose number then holds.

Usage: tools/soak/budgets.py [--sherd build/release/bin/sherd] [--data FILE] [--matrix] [--draw N] [--seed N] [--only WORDS]
                             [--results FILE]

By default 48 runs: four models of tools/configs/bench on one rank, on two that shard, on two replicas of two, and with
two ranks of tensor parallelism, each in 90, 75 and 60 % of what the captured step holds without a budget. With
`--matrix` a small model instead, in every setting that a run may have, in layouts, types and budgets that take turns.
A run fails unless
  - every step is a replay, the first one too, and holds no more than the budget,
  - it holds what was predicted, by category, to the byte, on all ranks,
  - it ends with the bits of the same run without --compile, which a run in all of its bytes has too,
  - or it is refused before the first step, with the least that the step can hold named by the ranks that hold it: then
    it runs in that, as above.
`--draw N` takes N of both kinds at random, one of each of FRESH among them, none of a bigger model. Nothing takes longer
than two minutes, or it is ended and has failed. `--results FILE` also writes what it has printed, and what was predicted
and measured by category, as JSON with the date.
"""
import argparse
import dataclasses
import datetime
import itertools
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

from jobs import Failure, Job, check

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SECONDS = 120  # of a run
USAGE = 2
LEAST = re.compile(r"below the least that the step can hold, [^(]* \((\d+) bytes\)")

SMALL = """
vocabulary = "bytes"
seed = 11
steps = 5
batch = 8
threads = 1
eval_batches = 1
[model]
layers = 2
heads = 2
width = 32
sequence = 32
[optimizer]
lr = 3e-3
warmup = 2
decay_steps = 5
"""

# Of the benchmarks' models: the batch is smaller where a run would take minutes.
MODELS = {"mini": ["--batch", "12"], "bigger": ["--batch", "4", "--steps", "3"], "bigger8": ["--batch", "4", "--steps", "3"],
          "tiny_llama": ["--batch", "4", "--model.kv-heads", "2"]}
LAYOUTS = {"1 rank": (1, []), "2 full_shard": (2, []), "HSDP 2x2": (4, ["--mesh", "replicate=2,dp=2"]),
           "TP 2": (2, ["--mesh", "tp=2"])}

# What the matrix is made of; none may change a bit when a budget is given.
STYLES = {"gpt2": ["--model.style", "gpt2", "--model.bias", "--model.tied-head"],
          "llama": ["--model.style", "llama"]}
DTYPES = {"f32": [], "bf16": ["--param-dtype", "bf16"], "f16": ["--param-dtype", "f16", "--loss-scale", "dynamic"]}
SPREADS = {
    "1 rank": (1, []),
    "2 full_shard": (2, []),
    "2 shard_grad_op": (2, ["--strategy", "shard_grad_op"]),
    "2 shard_optimizer": (2, ["--strategy", "shard_optimizer"]),
    "2 no_shard": (2, ["--strategy", "no_shard"]),
    "4 full_shard": (4, []),
    "2x2 hybrid_shard": (4, ["--mesh", "replicate=2,dp=2", "--strategy", "hybrid_shard"]),
    "2x2 hybrid_shard_grad_op": (4, ["--mesh", "replicate=2,dp=2", "--strategy", "hybrid_shard_grad_op"]),
    "2x2 hybrid_shard_state": (4, ["--mesh", "replicate=2,dp=2", "--strategy", "hybrid_shard_state"]),
    "TP 2": (2, ["--mesh", "tp=2"]),
    "TP 2 sequence": (2, ["--mesh", "tp=2", "--parallel.sequence"]),
    "2x2": (4, ["--mesh", "dp=2,tp=2"]),
    "3 full_shard": (3, ["--batch", "6"]),
}
SETTINGS = {
    "": [],
    "recompute full": ["--recompute", "full"],
    "recompute selective": ["--recompute", "selective"],
    "offload optimizer": ["--offload", "optimizer"],
    "offload parameters": ["--offload", "parameters"],
    "offload all": ["--offload", "all"],
    "offload backward": ["--offload", "optimizer", "--optimizer.clip", "0"],
    "offload all backward": ["--offload", "all", "--optimizer.clip", "0", "--accumulate", "2"],
    "offload activations": ["--offload-activations", "blocks"],
    "offload recomputed": ["--offload-activations", "blocks", "--recompute", "full"],
    "accumulate": ["--accumulate", "2"],
    "accumulate shards": ["--accumulate", "2", "--accumulate-shards"],
    "clip": ["--optimizer.clip", "0.1"],
    "no clip": ["--optimizer.clip", "0"],
    "fine": ["--units", "fine"],
    "coarse": ["--units", "coarse"],
    "layout_free": ["--numerics", "layout_free"],
    "threads": ["--threads", "2"],
    "thread group": ["--group", "thread"],
    "evaluations": ["--eval-every", "2"],
    "skip": ["--on-nonfinite", "skip"],
    "save async": ["--save-async", "--save-every", "2"],
    "loss parallel": ["--parallel.loss"],
    "int8": ["--gather", "int8", "--reduce", "int8"],
    "int8 accumulated": ["--gather", "int8", "--accumulate", "4"],
    "no prefetch": ["--prefetch", "false"],
    "dropout": ["--model.style", "gpt2", "--model.dropout", "0.1"],
    "dropout layout_free": ["--model.style", "gpt2", "--model.dropout", "0.1", "--numerics", "layout_free"],
    "dropout recomputed": ["--model.style", "gpt2", "--model.dropout", "0.1", "--recompute", "full", "--accumulate", "2"],
    "resumed": [],  # without --compile after two steps within a budget
    "resumes": [],  # with one after two steps without
}

# Steps that want what only a step made once: gradients that are held, encoded parameters, places of rows that draw, hooks.
FRESH = ("accumulate", "layout_free", "int8", "dropout", "offload backward")


@dataclasses.dataclass(frozen=True)
class Case:
    """What is trained, and how many percent it gets."""
    name: str
    config: str
    ranks: int
    flags: tuple
    percent: int
    setting: str = ""
    passes: str = ""


def bench_cases():
    for model, own in MODELS.items():
        for layout, (ranks, flags) in LAYOUTS.items():
            for percent in (90, 75, 60):
                yield Case(f"{model}, {layout}", model, ranks, ("--model.vocabulary", "256", *own, *flags), percent)


def matrix_cases():
    """All settings in all layouts; styles, types and budgets take turns, but against each other."""
    for s, (setting, flags) in enumerate(SETTINGS.items()):
        for l, (spread, (ranks, own)) in enumerate(SPREADS.items()):
            style, dtype = list(STYLES)[(s + l) % 2], list(DTYPES)[(s + 2 * l) % 3]
            yield Case(f"{style} {dtype} {spread}{', ' if setting else ''}{setting}", "small", ranks,
                       (*STYLES[style], *DTYPES[dtype], *own, *flags), (90, 75, 60)[(s // 3 + l) % 3], setting)


def draw(cases, count, rng):
    """So many of the cases, one of each of FRESH among them where they are enough, in full on more ranks with data."""
    fresh = [rng.choice([case for case in cases if case.setting == setting and case.ranks > 1
                         and " f16 " not in case.name and " TP " not in case.name]) for setting in FRESH][:count]
    rest = [case for case in cases if case not in fresh]
    return fresh + rng.sample(rest, count - len(fresh))


@dataclasses.dataclass
class Ended:
    status: int
    output: str
    steps: list  # of the metrics
    hash: str  # of all that it has saved
    saves: pathlib.Path


@dataclasses.dataclass
class Held:
    """What a run has held at most, as it was predicted, in bytes, in all and by category; empty where nothing was."""
    peak: int
    categories: dict


class Trainings:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.count, self.known = 0, {}
        self.configs = {"small": folder / "small.toml"}
        self.configs["small"].write_text(SMALL)
        for model in MODELS:
            text = (ROOT / f"tools/configs/bench/{model}.toml").read_text()
            self.configs[model] = folder / f"{model}.toml"
            self.configs[model].write_text('vocabulary = "bytes"\nsteps = 5\nthreads = 1\neval_batches = 1\n' + text)

    def train(self, case, flags, resume=None, steps=None):
        """One run of `case`, to its end; it is ended where it takes too long."""
        self.count += 1
        metrics, saves = self.folder / f"{self.count}.jsonl", resume or self.folder / f"{self.count}"
        command = [self.options.sherd, "run", "-n", str(case.ranks), "--"] if case.ranks > 1 else []
        command += [self.options.sherd, "train", str(self.configs[case.config]), "--data", str(self.options.data),
                    "--metrics", str(metrics), "--save", str(saves), *case.flags, *flags]
        command += ["--resume", str(resume)] if resume else []
        command += ["--steps", str(steps)] if steps else []
        job = Job(command, self.folder / f"{self.count}.out", str(self.count))
        try:
            status = job.wait(SECONDS)
            check(status is not None, f"hangs: {' '.join(command)}\n{job.text()[-2000:]}")
            job.check_nothing_is_left()
            output = job.text()
        finally:
            job.end()
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        own = ""
        if status == 0:
            own = subprocess.run([self.options.sherd, "ckpt", "hash", str(saves)], stdout=subprocess.PIPE, text=True,
                                 check=True).stdout.split()[0]
        return Ended(status, output, [line for line in lines if "step" in line], own, saves)

    def reference(self, case):
        """The hash without --compile; the bytes of the captured step without a budget, which must have that hash too.
        Nothing where there is no such run."""
        key = case.config, case.ranks, case.flags
        if key not in self.known:
            eager = self.train(case, [])
            if eager.status == USAGE:
                self.known[key] = None
                return None
            check(eager.status == 0, f"without --compile it ends with {eager.status}:\n{eager.output[-2000:]}")
            whole = self.train(case, ["--compile", "--memory-budget", "100%"])
            check(whole.status == 0, f"in 100 % it ends with {whole.status}:\n{whole.output[-2000:]}")
            check("no more than the" in whole.output, "in 100 % something is done")
            self.known[key] = eager.hash, judge(whole, case, None, eager.hash).peak
        return self.known[key]


def judge(end, case, budget, expected):
    """What a run that has ended well has held, unless something is wrong with it."""
    check(expected in (None, end.hash), f"other bits: {end.hash[:16]}, expected {(expected or '')[:16]}")
    steps = end.steps
    if "-budget" in case.passes:  # what has none is recorded in its first steps
        steps = list(itertools.dropwhile(lambda line: not line["captured"], steps))
    eager = [f"step {line['step']}: {line['why']}" for line in steps if not line["captured"]]
    check(not eager, f"no replays: {', '.join(eager)}")
    most = max(line["memory_peak_bytes"] for line in steps)
    if "-budget" in case.passes:
        return Held(most, {})
    predicted = end.steps[-1].get("predicted")
    check(predicted, "the last line of metrics has no prediction")
    check(not isinstance(budget, int) or most <= budget, f"holds {most} bytes of {budget}")
    check(most == predicted["memory_peak_bytes"], f"holds {most} bytes, predicted {predicted['memory_peak_bytes']}")
    for category, count in predicted["memory_bytes"].items():
        seen = max(line["memory_bytes"][category] for line in end.steps)
        check(seen == count, f"holds {seen} bytes of {category}, predicted {count}")
    differs = re.findall(r".*DIFFERS", end.output)
    check(not differs, "\n".join(differs))
    return Held(most, predicted["memory_bytes"])


def try_budget(trainings, case, budget, expected):
    """What a run within that budget holds and nothing; nothing and the least where it is refused."""
    flags = ["--compile", "--memory-budget", str(budget), "--passes", case.passes]
    if case.setting == "resumed":
        end = trainings.train(case, flags, steps=2)
        if end.status == 0:
            most = judge(end, case, budget, None)
            end = trainings.train(case, ["--compile", "false"], end.saves)
            check(end.hash == expected, f"resumed without a budget: other bits\n{end.output[-2000:]}")
            return most, None
    else:
        end = trainings.train(case, flags, trainings.train(case, [], steps=2).saves if case.setting == "resumes" else None)
        if end.status == 0:
            return judge(end, case, budget, expected), None
    named = [int(least) for least in LEAST.findall(end.output)]
    check(end.status == USAGE and named, f"ends with {end.status}:\n{end.output[-2000:]}")
    check(not end.steps, "it is refused after a step")
    return None, max(named)


def meet(trainings, case):
    """A case that is as it must be, as a row of the table; nothing where there is no such run."""
    known = trainings.reference(case)
    if known is None:
        return None
    expected, whole = known
    budget = int(case.percent / 100 * whole)
    held, least = try_budget(trainings, case, budget, expected)
    refusals = 0
    while held is None:  # each rank names its own
        refusals += 1
        check(refusals <= case.ranks + 1, f"refused {refusals} times, at last with {least} bytes")
        budget = least
        held, least = try_budget(trainings, case, budget, expected)
    return {"run": case.name, "percent": case.percent, "without": whole, "budget": budget, "held": held.peak,
            "predicted_is_held": held.categories, "refusals": refusals}


def line_of(row):
    """The row as it is printed."""
    if row is None:
        return "-: there is no such run without --compile"
    text = f"{row['without']:>11} {row['budget']:>11} {row['held']:>11}  {100 * row['held'] / row['without']:5.1f} %"
    return text + (f", the least, after {row['refusals']} refusals" if row["refusals"] else "")


def write_results(path, seed, rows, failed):
    """All rows of a run, with what they are of."""
    names = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if "model name" in line]
    path.write_text(json.dumps({
        "date": datetime.date.today().isoformat(), "machine": f"{names[0] if names else ''}, {len(names)} CPUs",
        "command": " ".join(["tools/soak/budgets.py", *sys.argv[1:]]), "seed": seed, "failed": failed,
        "bytes": "of the rank that holds most: without a budget, given, held at most in any step; a run that is refused "
                 "below the least was run in the least; what was predicted by category is what was held, to the byte",
        "runs": rows}, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sherd", default=str(ROOT / "build/release/bin/sherd"))
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "docs/training.md")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--draw", type=int, default=0, help="so many of both kinds; 0: all of one")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--results", type=pathlib.Path, help="a file for the table, as JSON")
    parser.add_argument("--only", default="", help="those with these words in their names")
    options = parser.parse_args()
    print(f"budgets: seed {options.seed}", flush=True)
    cases = list(matrix_cases() if options.matrix else bench_cases())
    if options.draw:
        small = [case for case in bench_cases() if "bigger" not in case.name]
        cases = draw([*small, *matrix_cases()], options.draw, random.Random(options.seed))
    cases = [case for case in cases if options.only in case.name]
    failed, rows = 0, []
    print(f"{'':<52} {'budget':>6} {'without':>11} {'bytes':>11} {'held':>11}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sherd-soak-") as folder:
        trainings = Trainings(options, pathlib.Path(folder))
        for case in cases:
            begin = time.monotonic()
            try:
                row = meet(trainings, case)
                rows += [row] if row else []
                text = line_of(row)
            except Failure as failure:
                failed += 1
                text = f"FAILED: {failure}"
            print(f"{case.name:<52} {case.percent:>4} % {text}  {time.monotonic() - begin:.1f} s", flush=True)
    skipped = len(cases) - failed - len(rows)
    print(f"budgets: {len(cases) - skipped} runs, {failed} failed{f', {skipped} that there are not' if skipped else ''}")
    if options.results:
        write_results(options.results, options.seed, rows, failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

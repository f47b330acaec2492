#!/usr/bin/env python3
"""Trains eagerly and captured, in settings of every kind together, and compares the bits.

Usage: tools/soak/pairs.py [--sherd build/release/bin/sherd] [--data FILE] [--draw N] [--minutes M] [--seed N] [--only I]

A run has one value on each axis of AXES: what is trained, over which ranks, which passes run within which budget, and what
the step does besides. By default runs are chosen so that every two values of two axes that go together meet in one of them;
`--draw N` draws N of the product instead. A run is judged as those of budgets.py are: bits of the eager run, replays, bytes
as predicted, or a refusal whose number then holds.
"""
import argparse
import itertools
import pathlib
import random
import sys
import tempfile
import time

from budgets import DTYPES, ROOT, SETTINGS, SPREADS, STYLES, USAGE, Case, Failure, Trainings, judge, try_budget

# Values are names of tables of budgets.py, or what runs have beside its flags; an empty one adds nothing.
AXES = {
    "style": list(STYLES),
    "dtype": list(DTYPES),
    "spread": list(SPREADS),
    "passes": ["", "-budget", "-dead_nodes", "-budget,-dead_nodes"],
    "percent": [90, 75, 60],
    "recompute": ["", "recompute full", "recompute selective"],
    "offload": ["", "offload optimizer", "offload parameters", "offload all"],
    "activations": ["", "offload activations"],
    "accumulate": ["", "accumulate", "accumulate shards"],
    "clip": ["", "clip", "no clip"],
    "dropout": ["", "dropout"],
    "units": ["", "fine", "coarse"],
    "numerics": ["", "layout_free"],
    "runs": ["", "threads", "thread group"],
    "besides": ["", "evaluations", "skip", "save async"],
    "loss": ["", "loss parallel"],
    "prefetch": ["", "no prefetch"],
}
TRAINED = list(AXES)[5:]  # axes of SETTINGS


# Values that do not go together: there is no such run, captured or not.
REFUSED = [
    {"dropout": ["dropout"], "style": ["llama"]},
    {"accumulate": ["accumulate shards"], "spread": ["2 no_shard"]},
    {"offload": ["offload parameters", "offload all"], "spread": ["2x2 hybrid_shard_state"]},
    {"numerics": ["layout_free"], "offload": ["offload all"]},
    {"numerics": ["layout_free"], "dtype": ["f16"]},
    {"numerics": ["layout_free"], "spread": ["3 full_shard"]},
    {"numerics": ["layout_free"], "accumulate": ["accumulate", "accumulate shards"]},
]


def is_allowed(row):
    """Whether the values go together, as far as they are chosen."""
    return not any(all(row.get(axis) in values for axis, values in refused.items()) for refused in REFUSED)


def pairs_of(row):
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


def covering(rng):
    """Rows in which all pairs that are allowed meet: each begins with one that has not, and takes what meets most others."""
    open_pairs = {frozenset(((a, x), (b, y))) for a, b in itertools.combinations(AXES, 2) for x in AXES[a] for y in AXES[b]
                  if is_allowed({a: x, b: y})}
    while open_pairs:
        best = {}
        for _ in range(8):
            row = dict(rng.choice(sorted(open_pairs, key=sorted_text)))
            for axis in rng.sample(list(AXES), len(AXES)):
                if axis in row:
                    continue
                values = [value for value in rng.sample(AXES[axis], len(AXES[axis])) if is_allowed({**row, axis: value})]
                row[axis] = max(values, key=lambda value: len(pairs_of({**row, axis: value}) & open_pairs))
            best = max(best, row, key=lambda other: len(pairs_of(other) & open_pairs))
        open_pairs -= pairs_of(best)
        yield best


def sorted_text(pair):
    return sorted(map(str, pair))


def drawn(rng, count):
    """So many of the product."""
    while count:
        row = {axis: rng.choice(values) for axis, values in AXES.items()}
        if is_allowed(row):
            count -= 1
            yield row


def case_of(row):
    ranks, spread = SPREADS[row["spread"]]
    settings = [row[axis] for axis in TRAINED if row[axis]]
    flags = [flag for setting in settings for flag in SETTINGS[setting]]
    name = ", ".join(str(row[axis]) for axis in AXES if row[axis])
    return Case(name, "small", ranks, (*STYLES[row["style"]], *DTYPES[row["dtype"]], *spread, *flags), row["percent"],
                passes=row["passes"])


def meet(trainings, case):
    """What is said of a case that is as it must be."""
    eager = trainings.train(case, [])
    if eager.status == USAGE:
        return "-: there is no such run without --compile: " + (eager.output.strip().splitlines() or [""])[-1][:200]
    if eager.status:
        raise Failure(f"without --compile it ends with {eager.status}:\n{eager.output[-2000:]}")
    if "-budget" in case.passes:
        return f"{judge(trainings.train(case, ['--compile', '--passes', case.passes]), case, None, eager.hash).peak}"
    most, budget, refusals = None, f"{case.percent}%", 0
    while most is None:
        most, least = try_budget(trainings, case, budget, eager.hash)
        if most is None:
            refusals, budget = refusals + 1, least
            if refusals > case.ranks + 1:
                raise Failure(f"refused {refusals} times, at last with {least} bytes")
    return f"{most.peak}{f' after {refusals} refusals' if refusals else ''}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sherd", default=str(ROOT / "build/release/bin/sherd"))
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "docs/training.md")
    parser.add_argument("--draw", type=int, default=0, help="so many of all combinations; 0: pairs")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; 0: at the end")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="one run of that seed")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    rows = list(drawn(rng, options.draw) if options.draw else covering(rng))
    print(f"pairs: seed {options.seed}, {len(rows)} runs", flush=True)
    begin, failed, skipped, met = time.monotonic(), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="sherd-soak-") as folder:
        trainings = Trainings(options, pathlib.Path(folder))
        for index, row in enumerate(rows):
            if options.only not in (None, index) or options.minutes and time.monotonic() - begin > 60 * options.minutes:
                continue
            case, start = case_of(row), time.monotonic()
            try:
                text = meet(trainings, case)
                skipped += text.startswith("-")
            except Failure as failure:
                failed += 1
                text = f"FAILED: {failure}"
            met += 1
            print(f"{index:>4} {case.name}: {text}  {time.monotonic() - start:.1f} s", flush=True)
    print(f"pairs: {met - skipped} runs, {failed} failed{f', {skipped} that there are not' if skipped else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

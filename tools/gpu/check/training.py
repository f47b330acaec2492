"""A small training run three ways: on the CPU, on the card, and there as a replayed recording. The losses of the first two
lie within rounding of each other, those of the last two agree in every bit."""

import json
import os
import sys
import time

import process
from host import call

# What makes bits repeat: algorithms that no clock chooses, sums in a fixed order.
FIXED = {"SHERD_MATMUL": "untuned", "SHERD_ATTENTION": "deterministic"}
RUNS = {"cpu": ["--device", "cpu"], "eager": ["--device", "cuda"], "captured": ["--device", "cuda", "--compile", "true"]}
SIZES = ["--steps", "20", "--batch", "8", "--model.layers", "4", "--model.width", "256", "--model.sequence", "128"]
DRY_SIZES = ["--steps", "5", "--batch", "1", "--model.layers", "1", "--model.width", "32", "--model.sequence", "16"]


def losses(path):
    found = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if "loss" in row:
            found.append(row["loss"])
    return found


def apart(a, b):
    """The largest relative distance."""
    return max(abs(x - y) / abs(x) for x, y in zip(a, b))


def fact(name, value, **more):
    print(json.dumps({"name": f"training.{name}", "value": value, **more}), flush=True)


def main():
    process.stop_on_signals()
    of = call()
    until = time.monotonic() + of.seconds - 3
    folder = of.folder / "training"
    folder.mkdir(exist_ok=True)
    text = "".join(path.read_text() for path in sorted((of.bundle / "tools/bench/peers").glob("*.py")))
    (folder / "text.txt").write_text((text * 20)[:200_000])
    found = {}
    for name, flags in RUNS.items():
        metrics, log = folder / f"{name}.jsonl", folder / f"{name}.log"
        log.write_text("")
        ended = process.run(["sherd", "train", of.bundle / "configs/shakespeare-char.toml", "--data", folder / "text.txt",
                             *(DRY_SIZES if of.dry else SIZES), "--eval-batches", "1", *flags, "--metrics", metrics],
                            until - time.monotonic(), log, environment={**os.environ, **FIXED})
        if ended.status:
            print(f"---- training on {name}\n{name}: " + ("did not end in time" if ended.timed_out else f"status {ended.status}"))
            print("\n".join(log.read_text(errors="replace").splitlines()[-30:]))
            return 1
        found[name] = losses(metrics)
        fact(f"{name}.last_loss", found[name][-1])
        fact(f"{name}.seconds", round(ended.seconds, 2))
    if len(set(map(len, found.values()))) != 1:
        print(f"the runs have {', '.join(str(len(row)) for row in found.values())} losses")
        return 1
    fact("steps", len(found["cpu"]))
    fact("cpu_cuda", apart(found["cpu"], found["eager"]), note="largest relative distance of a step's loss")
    fact("captured_eager", apart(found["eager"], found["captured"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

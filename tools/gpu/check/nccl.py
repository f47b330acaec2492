"""NCCL on one card.

usage: nccl.py           units of fully_shard on one rank beside the same model without them, captured steps, in turns
       nccl.py --ranks   two ranks on the card, which NCCL takes for two hosts by NCCL_HOSTID, over the loopback: may fail
"""

import json
import os
import statistics
import sys
import time

import process
from host import call, word
from llama1b import SideFailed, turn
from training import DRY_SIZES, SIZES, losses

ROUNDS = 3
# On one rank the default strategy has no units, so these are those of another one.
SIDES = {"plain": (), "units": ("--strategy", "shard_grad_op")}
HOST_OF_RANK = "NCCL_HOSTID=card$SHERD_RANK exec sherd \"$@\""


def units(of):
    model, steps = word("unit_model", of.dry), "2" if of.dry else "10"
    seconds = {name: [] for name in SIDES}
    for _ in range(ROUNDS):
        for name, flags in SIDES.items():
            side = turn(["sherd", "bench", "--child", "step", "--model", model, "--device", "cuda", *flags], steps, of.bundle)
            seconds[name].append(side.seconds)
    ours, plain = (statistics.median(seconds[name]) for name in ("units", "plain"))
    print(json.dumps({"name": "nccl.units", "value": ours * 1e3, "unit": "ms", "limit": plain * 1e3, "ratio": ours / plain, "peer": "without units",
                      "rounds": seconds["units"], "peer_rounds": seconds["plain"]}))
    print(json.dumps({"name": "nccl.units_of_plain", "value": round(ours / plain, 4)}))


def ranks(of):
    """Losses of two ranks by NCCL beside those of two that go through the host, whose bits they have."""
    until = time.monotonic() + of.seconds - 2
    folder = of.folder / "nccl"
    folder.mkdir(exist_ok=True)
    text = "".join(path.read_text() for path in sorted((of.bundle / "tools/bench/peers").glob("*.py")))
    (folder / "text.txt").write_text((text * 20)[:200_000])
    found = {}
    for group in ("staged", "nccl"):
        metrics, log = folder / f"{group}.jsonl", folder / f"{group}.log"
        log.write_text("")
        ended = process.run(["sherd", "run", "-n", "2", "--", "sh", "-c", HOST_OF_RANK, "sherd", "train",
                             of.bundle / "configs/shakespeare-char.toml", "--data", folder / "text.txt", *(DRY_SIZES if of.dry else SIZES),
                             "--steps", "5", "--batch", "8", "--eval-batches", "1", "--device", "cuda", "--group", group, "--reproducible",
                             "--deadline", "15", "--metrics", metrics],
                            until - time.monotonic(), log, environment={**os.environ, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"})
        if ended.status:
            lines = log.read_text(errors="replace").splitlines()
            why = "did not end in time" if ended.timed_out else next((line for line in reversed(lines) if line.strip()), "")
            print(json.dumps({"name": "nccl.two_ranks", "value": f"{group}: {why}"[:200]}))
            print(f"---- two ranks, {group}", *lines[-20:], sep="\n")
            return
        found[group] = losses(metrics)
        print(json.dumps({"name": f"nccl.two_ranks_{group}.seconds", "value": round(ended.seconds, 2)}))
    print(json.dumps({"name": "nccl.two_ranks", "value": "run" if found["nccl"] == found["staged"] else f"other losses: {found}"}))


def main():
    process.stop_on_signals()
    of = call()
    if "--ranks" in sys.argv[1:]:
        ranks(of)
        return 0
    try:
        units(of)
    except SideFailed as error:
        print(f"---- units\n{error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

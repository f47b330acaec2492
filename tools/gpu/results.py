"""What gpu_check.sh shows of its results.

usage: results.py table FIGURES.jsonl        figures beside their peer and limit
       results.py same-loss A.jsonl B.jsonl  two runs' losses; exit status 1 if they differ by more than 2 %
"""

import json
import sys


def table(path):
    rows = {row["name"]: row for row in map(json.loads, open(path))}  # of a figure measured again, the last
    for row in rows.values():
        value = "not measured" if row["value"] is None else f'{row["value"]:.4g} {row["unit"]}'
        ratio = f'{row["ratio"]:.2f}x {row["peer"]}' if row.get("ratio") else ""
        limit = f'limit {row["limit"]:.4g}' if row.get("limit") else ""
        verdict = {True: "ok", False: "MISSED", None: ""}[row.get("pass")]
        print(f'{row["name"]:<36} {value:<22} {limit:<18} {ratio:<26} {verdict} {row.get("note", "")[:100]}'.rstrip())


def losses(path):
    lines = [json.loads(line) for line in open(path)]
    return [line["loss"] for line in lines if "loss" in line]


def same_loss(first, second):
    a, b = losses(first), losses(second)
    worst = max(abs(x - y) / abs(x) for x, y in zip(a, b))
    print(f"{len(a)} and {len(b)} steps, losses {a[0]:.4f} -> {a[-1]:.4f} and {b[0]:.4f} -> {b[-1]:.4f}, "
          f"largest relative difference {worst:.2e}")
    return 0 if len(a) == len(b) and worst < 0.02 else 1


command, *paths = sys.argv[1:]
sys.exit({"table": table, "same-loss": same_loss}[command](*paths))

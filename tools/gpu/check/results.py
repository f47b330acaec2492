"""What the programs of a stage wrote, read and put beside what was expected.

usage: results.py table FIGURES.jsonl        figures beside their prediction, peer and limit
       results.py same-loss A.jsonl B.jsonl  two runs' losses; exit status 1 if they differ by more than 2 %
"""

import json
import pathlib
import sys


def predictions():
    return json.loads((pathlib.Path(__file__).absolute().parent / "predictions.json").read_text())


def read_lines(path):
    """The objects of a file of JSON lines, which may end within one."""
    rows = []
    for line in pathlib.Path(path).read_text(errors="replace").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def short(device):
    return device.replace("NVIDIA ", "").split(",")[0]


def table(rows):
    """A line for each figure on each card; of one that was measured again, the last."""
    expected = predictions()
    lines = []
    for row in {(row["name"], row.get("device")): row for row in rows}.values():
        value = "not measured" if row["value"] is None else f'{row["value"]:.4g} {row["unit"]}'
        foreseen = expected["figures"].get(row["name"])
        foreseen = f'predicted {foreseen:.4g}' if foreseen else ""
        ratio = f'{row["ratio"]:.2f}x {row["peer"]}' if row.get("ratio") else ""
        limit = f'limit {row["limit"]:.4g}' if row.get("limit") else ""
        verdict = {True: "ok", False: "MISSED", None: ""}[row.get("pass")]
        device = f'[{short(row["device"])}]' if row.get("device") else ""
        lines.append(f'{row["name"]:<33} {value:<18} {foreseen:<16} {limit:<13} {ratio:<20} {verdict:<6} {device} '
                     f'{row.get("note", "")[:80]}'.rstrip())
    if any("predicted" in line for line in lines):
        lines.append(f'Predictions are for one {expected["device"]}, {expected["what"]}.')
    return lines


def losses(path):
    return [line["loss"] for line in read_lines(path) if "loss" in line]


def compare_losses(first, second, relative):
    """What the comparison says, and whether all losses lie within the relative distance of each other."""
    a, b = losses(first), losses(second)
    if not a or len(a) != len(b):
        return f"{len(a)} and {len(b)} losses", False
    worst = max(abs(x - y) / abs(x) for x, y in zip(a, b))
    return (f"{len(a)} steps, losses {a[0]:.4f} -> {a[-1]:.4f} and {b[0]:.4f} -> {b[-1]:.4f}, largest relative difference "
            f"{worst:.2e}", worst <= relative)


def main():
    command, *paths = sys.argv[1:]
    if command == "table":
        print("\n".join(table(read_lines(paths[0]))))
        return 0
    text, same = compare_losses(*paths, relative=0.02)
    print(text)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

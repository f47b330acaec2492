#!/usr/bin/env python3
"""Compares the code of each folder with its row in tools/weight.toml, which says what is counted and who may raise a row,
and the names of the stages of .ci/run with the rows of their seconds.

Usage: weigh.py [ROOT]                 prints what each folder weighs beside its row; status 1 if check_layers.py would fail
       weigh.py [ROOT] --write         lowers rows to what their folders weigh and 3 % (--room PERCENT) more; raises none
       weigh.py [ROOT] --write --raise writes all rows so, raised ones too: for a commit that does nothing else
       weigh.py [ROOT] --history BASE  also checks the commits of BASE..HEAD that change a row (without it: those that
                                       the upstream branch does not have, and HEAD)
"""
import argparse
import pathlib
import re
import sys
import tomllib

from count_code import Weight, weigh_tree
from weight_history import rises_in_history

ROWS = "tools/weight.toml"
ROW = re.compile(r'^("(?P<folder>[^"]+)"\s*=\s*)\{[^}]*\}', re.M)
STAGE = re.compile(r"^\s*(?:if (?:! )?)?(?:\w+=\S* )*stage ([a-z][\w.-]*)", re.M)
REMEDY = "take {excess} out, or raise the row in a commit that does nothing else and names the issue"


class BadRows(Exception):
    """Says what is wrong with tools/weight.toml, in one line."""


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_rows(root):
    """Returns {folder: Weight} of tools/weight.toml."""
    try:
        table = tomllib.loads((root / ROWS).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadRows(f"{ROWS}: does not exist, so no folder has a budget") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRows(f"{ROWS}: {error}") from error
    rows = {}
    for folder, row in table.get("folders", {}).items():
        if not isinstance(row, dict) or set(row) != set(Weight._fields) or not all(map(is_count, row.values())):
            raise BadRows(f"{ROWS}: the row {folder} is {row}; it has {', '.join(Weight._fields)}, each a count")
        rows[folder] = Weight(**row)
    return rows


def stages_without_rows(root):
    """Yields one line for each stage of .ci/run that [ci.seconds] does not have, and each row there of no stage."""
    run = root / ".ci" / "run"
    if not run.is_file():
        return
    text = run.read_text(encoding="utf-8")
    ci = tomllib.loads((root / ROWS).read_text(encoding="utf-8")).get("ci", {})
    rows = [*ci.get("seconds", {}), *ci.get("network", [])]
    for name in STAGE.findall(text):
        if name not in rows:
            yield f".ci/run: the stage {name} has no row in [ci.seconds] of {ROWS}; add one, in a commit that names the issue"
    yield from (f"{ROWS}: .ci/run has no stage {name}; take its row out"
                for name in rows if not re.search(rf"\bstage {re.escape(name)}\b", text))


def over_rows(rows, weights):
    """Yields one line for each count of a folder that is over its row."""
    for folder, budget in rows.items():
        for kind, count, allowed in zip(Weight._fields, weights[folder], budget):
            if count > allowed:
                what = "public types" if kind == "types" else kind
                yield f"{folder}: {count} {what}, its row in {ROWS} allows {allowed}; {REMEDY.format(excess=count - allowed)}"


def breaches(root, base=None, note=lambda text: print(text, file=sys.stderr)):
    """Yields every breach of the budgets below `root` as one line of text; `note` takes what could not be checked."""
    try:
        rows = read_rows(root)
        weights, without = weigh_tree(root, rows)
    except (BadRows, SyntaxError) as error:
        yield str(error)
        return
    yield from (f"{folder}: has no row in {ROWS}; add one, in a commit that names the issue" for folder in without)
    yield from (f"{ROWS}: the row {folder} has no folder with code; take the row out"
                for folder in rows if not weights[folder].files)
    yield from over_rows(rows, weights)
    yield from stages_without_rows(root)
    yield from rises_in_history(root, ROWS, base, note)


def print_table(rows, weights):
    width = max(map(len, [*rows, "folder"]))
    print(f"{'folder':{width}}" + "".join(f"{kind:>12}{'row':>7}" for kind in Weight._fields))
    totals = [Weight(*map(sum, zip(*table.values()))) if table else Weight() for table in (weights, rows)]
    for folder, weight, row in [*((folder, weights[folder], rows[folder]) for folder in rows), ("all", *totals)]:
        print(f"{folder:{width}}" + "".join(f"{count:12}{allowed:7}" for count, allowed in zip(weight, row)))


def write_rows(root, weights, rows, room, may_raise):
    """Writes rows with `room` percent above the weights; keeps lower ones unless they may rise."""
    def row_text(match):
        folder = match["folder"]
        if folder not in rows:
            return match[0]
        wanted = [-(-count * (100 + room) // 100) for count in weights[folder]]
        counts = wanted if may_raise else map(min, wanted, rows[folder])
        fields = [f"{kind} = {count}" for kind, count in zip(Weight._fields, counts)]
        return match[1] + "{ " + ", ".join(fields) + " }"

    text = (root / ROWS).read_text(encoding="utf-8")
    (root / ROWS).write_text(ROW.sub(row_text, text), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--raise", dest="may_raise", action="store_true")
    parser.add_argument("--room", type=int, default=3)
    parser.add_argument("--history", metavar="BASE")
    options = parser.parse_args()
    if options.may_raise and not options.write:
        parser.error("--raise goes with --write")
    if options.room < 0:
        parser.error(f"--room {options.room}: a percentage is 0 or more")
    root = options.root.resolve()
    try:
        rows = read_rows(root)
        weights, _ = weigh_tree(root, rows)
    except (BadRows, SyntaxError) as error:
        print(error)
        return 1
    if options.write:
        write_rows(root, weights, rows, options.room, options.may_raise)
        rows = read_rows(root)
    print_table(rows, weights)
    found = list(breaches(root, options.history))
    for breach in found:
        print(breach)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Keeps nn/parallel/checklist.md true: which tests hold each of the behaviours F1 to F208.

Usage: f_table.py BUILD                      fills in the column of tests from what ctest knows in the build folder
       f_table.py --check [--complete] BUILD fails unless every row has a test or a note that says why there is none, and
                                             the column is what it would be filled with; --complete: and nothing is
                                             "not built yet"

A test belongs to F44 if its name contains `F44_`; it may belong to several (`F64_F65_...`). Of parametrised tests the
name alone counts, and of a test that runs on the emulated and on a real GPU the emulated one. A test that is disabled is
none. A note beside tests says what they leave out: it begins with "partly:" or "differs by design:".
Exit status 1 if the table is wrong, 77 if test programs are not built, so that nobody knows their tests.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TABLE = pathlib.Path(__file__).resolve().parents[1] / "nn" / "parallel" / "checklist.md"
LAST = 208
ROW = re.compile(r"^\| F(\d+) \| (.*?) \| (.*?) ?\| (.*?) ?\|$")
TEST = re.compile(r"`([^`]+)`")
NUMBER = re.compile(r"(?<![A-Za-z0-9])F(\d+)_")
NOT_BUILT = "not built yet"
BESIDE_TESTS = ("partly:", "differs by design:")
DEVICES = ("emulated.", "device.")  # prefixes of tests that only a build with CUDA has


class NothingKnown(Exception):
    """Test programs are missing from the build."""


def names_that_run(tests):
    """The names of ctest's tests but for disabled ones, which hold nothing."""
    return [test["name"] for test in tests
            if not any(p["name"] == "DISABLED" and p["value"] for p in test.get("properties", []))]


def names_in(build, ctest):
    """The names of all tests of a build folder that run."""
    if not (build / "CTestTestfile.cmake").is_file():
        raise NothingKnown(f"{build} is no build folder with tests: run cmake first")
    # From a folder of its own: ctest writes a log into the one where it runs, and may be running in the build.
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "CTestTestfile.cmake").write_text(f'subdirs("{build.resolve().as_posix()}")\n')
        shown = subprocess.run([ctest, "-N", "--show-only=json-v1"], cwd=folder, check=True, capture_output=True)
    names = names_that_run(json.loads(shown.stdout)["tests"])
    missing = [name.removesuffix("_NOT_BUILT") for name in names if name.endswith("_NOT_BUILT")]
    if missing:
        raise NothingKnown(f"these test programs are not built: {', '.join(missing)}")
    return names


def tests_by_number(names):
    """{44: ["FullyShard.F44_CollectivesPerStep", ...]}, sorted."""
    tests = {}
    for name in names:
        found = re.search(r"(?<![A-Za-z0-9])(F\d+_)+\w*", name)
        if not found:
            continue
        plain = re.sub(r"(^|\.)\w+/", r"\1", name[:found.start()]) + found[0]  # without instances and parameters
        for number in NUMBER.findall(found[0]):
            tests.setdefault(int(number), set()).add(plain)
    for of_number in tests.values():
        emulated = {name.removeprefix("emulated.") for name in of_number if name.startswith("emulated.")}
        of_number -= {"device." + name for name in emulated}
    return {number: sorted(of_number) for number, of_number in tests.items()}


def keep_absent_devices(tests, rows, names):
    """Adds the table's tests of devices that this build cannot know, because it is one without CUDA."""
    absent = tuple(prefix for prefix in DEVICES if not any(name.startswith(prefix) for name in names))
    for number, (_, _, listed) in rows.items():
        kept = {name for name in listed if absent and name.startswith(absent)}
        if kept:
            tests[number] = sorted(kept | set(tests.get(number, [])))


def rows_of(text):
    """{number: (behaviour, note, tests)} of the table's lines, and what is wrong with their numbers."""
    rows, wrong, last = {}, [], 0
    for line in text.splitlines():
        if not re.match(r"^\| F\d", line):
            continue
        match = ROW.match(line)
        if not match:
            wrong.append(f"not a row of four columns: {line}")
            continue
        number = int(match[1])
        if number != last + 1:
            wrong.append(f"F{number} follows F{last}")
        last = number
        rows[number] = (match[2], match[3].strip(), TEST.findall(match[4]))
    if last != LAST:
        wrong.append(f"the table ends with F{last}, the list with F{LAST}")
    return rows, wrong


def filled(text, tests):
    """The text with the column of tests as `tests` says."""
    def fill(line):
        match = ROW.match(line)
        if not match:
            return line
        shown = " ".join(f"`{name}`" for name in tests.get(int(match[1]), []))
        return f"| F{match[1]} | {match[2]} | {match[3].strip()} | {shown} |"
    return "".join(fill(line.rstrip("\n")) + "\n" for line in text.splitlines())


def faults_of_row(number, note, listed, known):
    """Yields what is wrong with one row."""
    name = f"F{number}"
    for test in listed:
        if test not in known:
            yield f"{name} names {test}, which ctest does not know"
    for test in known:
        if test not in listed:
            yield f"{name} lacks {test}"
    if not known and not note:
        yield f"{name} has neither a test nor a note that says why: name one {name}_..., or write the note"
    if known and note and not note.startswith(BESIDE_TESTS):
        yield f'{name} has tests and the note "{note}": remove it, or begin it with "partly:" or "differs by design:"'
    if not known and note.startswith("partly:"):
        yield f"{name} is tested partly, says its note, but has no test"


def check(text, names, complete=False):
    """Returns (what is wrong, one sentence of counts)."""
    rows, wrong = rows_of(text)
    tests = tests_by_number(names)
    keep_absent_devices(tests, rows, names)
    for number in sorted(set(tests) - set(rows)):
        wrong.append(f"{tests[number][0]} is of F{number}, which is no row")
    for number, (_, note, listed) in rows.items():
        wrong += faults_of_row(number, note, listed, tests.get(number, []))
    if not wrong and filled(text, tests) != text:
        wrong.append("the column of tests is in another order or form")
    open_rows = [number for number, (_, note, _) in rows.items() if NOT_BUILT in note]
    if complete:
        wrong += [f"F{number}: {rows[number][1]}" for number in open_rows]
    num_tested = sum(1 for number in rows if tests.get(number))
    return wrong, (f"{num_tested} of {len(rows)} behaviours have tests; {len(open_rows)} say \"{NOT_BUILT}\", "
                   f"{sum(1 for n in open_rows if tests.get(n))} of them of a part")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--complete", action="store_true")
    parser.add_argument("--ctest", default="ctest", help="the program, if it is not in PATH")
    options = parser.parse_args()
    text = TABLE.read_text()
    try:
        names = names_in(options.build, options.ctest)
    except NothingKnown as reason:
        print(f"f_table: {reason}; nothing was compared")
        return 77
    if not options.check:
        tests = tests_by_number(names)
        keep_absent_devices(tests, rows_of(text)[0], names)
        TABLE.write_text(filled(text, tests))
        text = TABLE.read_text()
    wrong, counts = check(text, names, options.complete)
    for line in wrong:
        print(line)
    print(f"f_table: {counts}")
    if wrong:
        print(f"f_table: {len(wrong)} faults in {TABLE}; `tools/f_table.py BUILD` fills in the tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

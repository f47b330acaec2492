#!/usr/bin/env python3
"""Checks the rules of the tree that no compiler checks, and prints one line per breach.

  includes   "folder/file.h" exists, and its folder is one that the including folder may see
  headers    `#pragma once` stands in every header exactly once
  length     no file of code has more than 600 lines
  README     every folder has a README.md, but for those below tests/golden, which are as other programs write them
  ASCII      code is ASCII text
  variables  getenv appears only in tools/ and runtime/os/settings.cpp (tests may set variables)

Usage: check_layers.py [ROOT]   (ROOT is the repository, by default the one this file is in.) Exit status 1 on a breach.
"""
import pathlib
import re
import sys

# What each folder may include, itself aside.
MAY_SEE = {
    "runtime": set(),
    "dtensor": {"runtime"},
    "compile": {"runtime"},
    "nn": {"runtime", "dtensor"},
    "tools": {"runtime", "dtensor", "compile", "nn"},
    "tests": {"runtime", "dtensor", "compile", "nn", "tools"},
}
MAX_LINES = 600
CXX = {".h", ".cpp", ".cu"}
CODE = CXX | {".py", ".cmake"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]*)"')
PRAGMA_ONCE = re.compile(r"^\s*#\s*pragma\s+once\b")
GETENV = re.compile(r"\bgetenv\s*\(|\benviron\b")


def check_include(root, folder, target):
    """Returns what is wrong with including `target` from a file of `folder`, or None."""
    top = target.split("/")[0]
    if top not in MAY_SEE or "/" not in target:
        return f'"{target}" does not start with a folder of the tree ({", ".join(MAY_SEE)})'
    if top != folder and top not in MAY_SEE[folder]:
        allowed = ", ".join(sorted(MAY_SEE[folder])) or "nothing of ours"
        return f'"{target}": {folder} may not include {top} (it may include {allowed})'
    if not (root / target).is_file():
        return f'"{target}" does not exist'
    return None


def check_cxx(root, path, folder, lines):
    """Yields (line number, breach) for one C++ file."""
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        breach = match and check_include(root, folder, match.group(1))
        if breach:
            yield number, breach
        reads_environment = folder == "tools" or folder == "tests" or path == root / "runtime/os/settings.cpp"
        if GETENV.search(line) and not reads_environment:
            yield number, "environment variables are read in tools/ and runtime/os/settings.cpp only"
    if path.suffix == ".h":
        count = sum(1 for line in lines if PRAGMA_ONCE.match(line))
        if count != 1:
            yield 1, f"`#pragma once` stands {count} times; it must stand once"


def check_tree(root):
    """Yields every breach below `root` as one line of text."""
    files = [path for top in [*MAY_SEE, "cmake"] for path in (root / top).rglob("*") if path.is_file()]
    golden = root / "tests" / "golden"
    for folder in sorted({path.parent for path in files}):
        if folder.name != "__pycache__" and golden not in folder.parents and not (folder / "README.md").is_file():
            yield f"{folder.relative_to(root)}: has no README.md"
    for folder in MAY_SEE:
        for path in sorted((root / folder).rglob("*")):
            where = path.relative_to(root)
            if path.suffix not in CODE or not path.is_file():
                continue
            data = path.read_bytes()
            lines = data.decode("utf-8", "replace").splitlines()
            if len(lines) > MAX_LINES:
                yield f"{where}: {len(lines)} lines; the limit is {MAX_LINES}"
            for number, line in enumerate(data.splitlines(), 1):
                if not line.isascii():
                    yield f"{where}:{number}: not ASCII"
            if path.suffix in CXX:
                for number, breach in check_cxx(root, path, folder, lines):
                    yield f"{where}:{number}: {breach}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    breaches = list(check_tree(root))
    for breach in breaches:
        print(breach)
    print(f"check_layers: {len(breaches)} breaches" if breaches else "check_layers: the tree keeps its rules")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())

"""Counts what a folder of the tree holds: statements, files and public types, as tools/weight.toml names them."""
import ast
import os
import pathlib
import re
import subprocess
from typing import NamedTuple

import type_definitions
from cxx_code import code_of

CXX = {".h", ".cpp", ".cu", ".cuh"}
CODE = CXX | {".py", ".cmake", ".sh"}
HIDDEN = re.compile(r"(?:^|:|_)detail::|<")  # and specializations


class Weight(NamedTuple):
    """What a folder holds, or what its row allows."""
    statements: int = 0
    files: int = 0
    types: int = 0

    def plus(self, other):
        return Weight(*(a + b for a, b in zip(self, other)))


def git(root, *arguments):
    """Returns what git prints about the tree at `root`, or None where git fails."""
    # A hook's variables speak of the repository that is committed to, which need not be this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        run = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False, env=environment)
    except OSError:
        return None
    return run.stdout if run.returncode == 0 else None


def is_repository(root):
    top = git(root, "rev-parse", "--show-toplevel")
    return top is not None and pathlib.Path(top.rstrip("\n")).resolve() == pathlib.Path(root).resolve()


def files_of(root, folders):
    """Yields the paths, as text, of the files that git has and of new ones in `folders` that it does not ignore; without
    git, of all but build/ and __pycache__."""
    if is_repository(root):
        listed = git(root, "ls-files", "-z") + git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", *folders)
        names = listed.split("\0")
        yield from sorted({name for name in names if name and (root / name).is_file()})
        return
    for folder, below, files in os.walk(root):
        below[:] = sorted(name for name in below if name not in (".git", "build", "__pycache__"))
        yield from ((pathlib.Path(folder) / name).relative_to(root).as_posix() for name in sorted(files))


def is_code(path):
    """Tells whether the file is C++, Python, CMake, shell or a script without a suffix."""
    if path.suffix in CODE or path.name == "CMakeLists.txt":
        return True
    with path.open("rb") as file:
        return path.suffix == "" and file.read(2) == b"#!"


def public_types(code):
    """Counts the types that a header defines at namespace scope, in what code_of() returns: classes, structs, unions and
    enums with a name, but no specializations, and nothing in anonymous namespaces and those called detail."""
    return sum(outermost and not HIDDEN.search(name) for name, _, outermost in type_definitions.definitions(code))


def weigh_file(path):
    """Returns the weight of one file of code: of C++ its `;` and `{`, of Python its statements but for docstrings."""
    if path.suffix in CXX:
        code = code_of(path.read_text(encoding="utf-8", errors="replace"))
        return Weight(code.count(";") + code.count("{"), 1, public_types(code) if path.suffix in (".h", ".cuh") else 0)
    if path.suffix == ".py":
        statements = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.stmt)]
        return Weight(sum(not is_text(node) for node in statements), 1)
    return Weight(0, 1)


def is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def row_of(folder, rows):
    """Returns the row that weighs `folder`: its own, or that of the nearest folder above; None where there is none."""
    while folder != "." and folder not in rows:
        folder = os.path.dirname(folder) or "."
    return folder if folder in rows else None


def weigh_tree(root, rows):
    """Returns {row: Weight} of the code below `root`, and the folders, outermost ones, that no row weighs. The row "."
    weighs the files of the root alone."""
    weights, without = dict.fromkeys(rows, Weight()), set()
    below = [row for row in rows if row != "."]
    for name in files_of(root, below):
        if not is_code(root / name):
            continue
        folder = os.path.dirname(name) or "."
        row = row_of(folder, rows if folder == "." else below)
        if row is None:
            without.add(folder.split("/")[0])
        else:
            weights[row] = weights[row].plus(weigh_file(root / name))
    return weights, sorted(without)

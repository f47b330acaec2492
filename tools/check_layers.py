#!/usr/bin/env python3
"""Checks the rules of the tree that no compiler checks, and prints one line per breach.

  includes   "folder/file.h" exists, and its folder is one that the including folder may see; <sherd/...> is included by
             programs only: tools/examples and tests
  rooms      inside a folder of ORDER, a room includes itself and those before it; a header those of HEADER_ORDER too
  headers    `#pragma once` stands in every header exactly once
  length     no file of code has more than 600 lines, no function more than 60 (clang-tidy checks functions too)
  README     every folder has a README.md, but for those below tests/golden, which are as other programs write them
  ASCII      code is ASCII text
  variables  getenv appears only in tools/ and runtime/os/settings.cpp (tests may set variables)
  errno      a check() that prints errno does not call the system in its condition: which of the two comes first is open
  types      no two files define a type of one name in one namespace (type_definitions.py)
  state      what a captured step reads of an object is a field that says who sees it change (host_state.py)
  weight     no folder is over its row in tools/weight.toml, and rows rise only as that file says (weigh.py)
  limits     no type, README or comment is over its limit, but for the rows of tools/limits.toml, which fall (limits.py)
  face       the public types are those of tools/face.txt (face.py); `--face` prints them
  settings   a setting's text becomes a value where flags, files and plans are read, and nowhere later
  op names   outside of runtime/op no code compares ops by name: what differs is a column (tests may pick ops by name)

Usage: check_layers.py [--face] [ROOT]   (ROOT is the repository, by default the one this file is in.) Exit status 1 on a breach.
"""
import pathlib
import re
import sys

import face
import host_state
import limits
import type_definitions
import weigh
from cxx_code import code_of

# What each folder may include, itself aside.
MAY_SEE = {
    "include": {"runtime", "dtensor", "compile", "nn", "tools"},
    "runtime": set(),
    "dtensor": {"runtime"},
    "compile": {"runtime"},
    "nn": {"runtime", "dtensor"},
    "tools": {"runtime", "dtensor", "compile", "nn"},
    "tests": {"runtime", "dtensor", "compile", "nn", "tools"},
}
# Rooms of a folder, the lowest first; those of one entry do not see each other, unless "+" joins them. A file of the
# folder itself is a room where its name stands here without its ending; all others together are the room ".".
ORDER = {
    "runtime": ["os", "tensor", "memory", "exec", "comm", "op", "autograd", "cpu cuda"],
    "runtime/comm": ["group", "store", "board", "hosts", "job"],
    "runtime/cpu": ["gemm", "rows", "attention"],
    "dtensor": ["modes", "placement recent scopes", ".+transition", "rules"],
    "compile": ["ir", "passes", "capture", "run", "."],
    "compile/ir": ["text", "analysis"],
    "nn": [".", "layers", "optim", "parallel checkpoint offload_activations", "models data", "plan interop"],
    "nn/checkpoint": ["format", "save load", "full"],
    "nn/parallel": [".", "shard", "extensions"],
    "nn/parallel/shard": ["gather", "unit", "reduce", "wrap"],
    "tools": ["train", "launch", "table", "plan", "diagnose", "cli", "calibrate", "bench", "walk"],
}
# The same for headers alone, where a .cpp needs more.
HEADER_ORDER = {
    "dtensor": ["below mesh placement recent modes scopes", "layer spec",
                "api check_parts create draw local_runs rule spec_attr spec_table transition",
                "choose derived listed_splits plain_part propagate", "rules"],
}
MAX_LINES = 600
MAX_FUNCTION_LINES = 60
CXX = {".h", ".cpp", ".cu"}
CODE = CXX | {".py", ".cmake"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]*)"')
UMBRELLA = re.compile(r"^\s*#\s*include\s*<(sherd/[^>]*)>")
PRAGMA_ONCE = re.compile(r"^\s*#\s*pragma\s+once\b")
NO_FUNCTION = re.compile(r"\b(requires|alignas|decltype|noexcept|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)")
GETENV = re.compile(r"\bgetenv\s*\(|\benviron\b")
# op.name, node.op->name, row->name; `row.name` is a figure's in tools/bench.
OP_NAME = r"\b(?:\w+_)?(?:op_?(?:\(\))?(?:\.|->)|row_?->)name\b"
CHECK = re.compile(r"\bcheck(?:_usage)?\s*\(")
SYSTEM_CALL = re.compile(r"(?<![\w>])::\s*[a-z]\w*\s*\(|\bstd::(?:f\w+|rename|remove)\s*\(")
COMPARED_OP = re.compile(
    rf"{OP_NAME}\s*(?:==|!=|\.\s*(?:starts_with|ends_with|find|compare)\b)"
    rf"|(?:==|!=)\s*(?:[\w:()\[\]]+(?:\.|->))*{OP_NAME}(?!\s*[.(])")

READS_SETTING = re.compile(r"\b(parse_(?:device|count|number|bytes|byte_rate)|dtype_from_name)\s*\(")
# Files that read settings, and those with texts of other kinds: programs, saves, what a benchmark asks its children.
MAY_READ_SETTINGS = ("runtime/", "compile/ir/text/", "nn/checkpoint/format/", "nn/plan/", "nn/parallel/shard/unit/policy.cpp",
                     "tools/train/flags.", "tools/train/config.", "tools/train/links.cpp",
                     "tools/launch/launch.cpp", "tools/plan/sweep.cpp", "tools/bench/", "tests/")


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


def check_umbrella(root, where, target):
    """Returns what is wrong with including <`target`> from the file `where`, or None."""
    if not where.startswith(("tools/examples/", "tests/", "include/")):
        return f'<{target}> is for programs; code of the tree includes "folder/file.h"'
    return None if (root / "include" / target).is_file() else f"<{target}> does not exist"


def room_of(path, folder, level):
    """The room of `folder` that the file `path` is in, or None if it is in none of `level`."""
    if not path.startswith(folder + "/"):
        return None
    name, *below = path[len(folder) + 1:].split("/")
    room = name if below else name.partition(".")[0]
    return room if room in level else None if below or "." not in level else "."


def check_rooms(where, target):
    """Returns which order of rooms the include of `target` from the file `where` breaks, or None."""
    orders = [*ORDER.items(), *(HEADER_ORDER.items() if where.endswith(".h") else ())]
    for folder, order in orders:
        level = {room: (i, joined) for i, line in enumerate(order) for joined in line.split() for room in joined.split("+")}
        here, there = (room_of(path, folder, level) for path in (where, target))
        if None in (here, there) or here == there or level[here] == level[there] and "+" in level[here][1]:
            continue
        if level[there][0] >= level[here][0]:
            return f'"{target}": the order in {folder}/ is {" < ".join(line.replace(" ", " | ") for line in order)}'
    return None


def function_lengths(text):
    """Yields (first line, number of lines) of each function body that stands in no other, of what code_of() returns."""
    open_braces = []  # (kind, where the head starts)
    head_start = 0
    for brace in re.finditer(r"[{};]", text):
        in_function = any(kind == "function" for kind, _ in open_braces)
        if brace[0] == "{":
            head = text[head_start:brace.start()]
            plain = re.sub(r"template\s*<.*?>\s*(?=[\w:])", "", NO_FUNCTION.sub("", head), flags=re.S).strip()
            is_type = re.match(r"(class|struct|union|enum)\b", plain) and "(" not in plain
            is_function = "(" in plain and not plain.endswith("=") and not re.search(r"\bnamespace\b", plain)
            open_braces.append(("function" if is_function and not is_type and not in_function else "other",
                                head_start + len(head) - len(head.lstrip())))
        elif brace[0] == "}" and open_braces:
            kind, at = open_braces.pop()
            if kind == "function":
                yield text.count("\n", 0, at) + 1, text.count("\n", at, brace.start()) + 1
        if not any(kind == "function" for kind, _ in open_braces):
            head_start = brace.end()


def arguments_of(code, start):
    """The text of the arguments of the call whose parenthesis opens just before `start`, split at its own commas."""
    depth, begin, arguments = 1, start, []
    for match in re.compile(r"[()\[\]{},]").finditer(code, start):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
        if depth == 0 or (depth == 1 and match[0] == ","):
            arguments.append(code[begin:match.start()])
            begin = match.end()
        if depth == 0:
            break
    return arguments


def late_errno(code):
    """Yields the places of checks whose message reads errno, maybe before their condition has set it."""
    for match in CHECK.finditer(code):
        condition, *message = arguments_of(code, match.end()) or [""]
        if SYSTEM_CALL.search(condition) and any(re.search(r"\berrno\b", part) for part in message):
            yield match.start()


def check_cxx(root, path, folder, lines, code):
    """Yields (line number, breach) for one C++ file; `code` is code_of() its text."""
    where = path.relative_to(root).as_posix()
    for number, length in function_lengths(code):
        if length > MAX_FUNCTION_LINES:
            yield number, f"a function of {length} lines; the limit is {MAX_FUNCTION_LINES}"
    for at in late_errno(code):
        yield (code.count("\n", 0, at) + 1,
               "errno may be read before the call in the condition has failed; call first, then check")
    if folder != "tests" and root / "runtime/op" not in path.parents:
        for match in COMPARED_OP.finditer(code):
            yield (code.count("\n", 0, match.start()) + 1,
                   "an op is compared by name; ask for a column of its row (runtime/op/core/op.h), or compare rows")
    for match in () if where.startswith(MAY_READ_SETTINGS) else READS_SETTING.finditer(code):
        yield (code.count("\n", 0, match.start()) + 1,
               f"{match[1]}() reads a setting late; make the field a value that has a text (nn/plan/text_value.h)")
    for number, line in enumerate(lines, 1):
        if match := INCLUDE.match(line):
            breach = check_include(root, folder, match.group(1)) or check_rooms(where, match.group(1))
        else:
            breach = (match := UMBRELLA.match(line)) and check_umbrella(root, where, match.group(1))
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
    codes, texts = {}, {}  # of C++ files
    for folder in MAY_SEE:
        for path in sorted((root / folder).rglob("*")):
            where = path.relative_to(root).as_posix()
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
                texts[where] = "\n".join(lines)
                codes[where] = code_of(texts[where])
                for number, breach in check_cxx(root, path, folder, lines, codes[where]):
                    yield f"{where}:{number}: {breach}"
    for where, at, name, other in type_definitions.defined_twice(codes.items()):
        number = codes[where].count("\n", 0, at) + 1
        yield f"{where}:{number}: {name} is defined in {other} too; give one of them another name"
    for where, number, breach in host_state.breaches(root, codes):
        yield f"{where}:{number}: {breach}"
    readmes = [path for path in [root / "README.md", *files] if path.name == "README.md" and path.is_file()]
    yield from limits.breaches(root, codes, texts, sorted(readmes))
    yield from face.breaches(root, texts, codes)


def print_face(root):
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
             for folder in MAY_SEE for path in (root / folder).rglob("*.h")}
    print("\n".join(sorted(face.public_types(texts, {file: code_of(text) for file, text in texts.items()}))))


def main(words):
    arguments = [word for word in words if word != "--face"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    if "--face" in words:
        return print_face(root)
    breaches = [*check_tree(root), *weigh.breaches(root)]
    for breach in breaches:
        print(breach)
    print(f"check_layers: {len(breaches)} breaches" if breaches else "check_layers: the tree keeps its rules")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Limits of types, READMEs and comments. What is over one has a row in tools/limits.toml, which may only fall.

  declarations  a type declares at most 45 members, functions, types and names in its own braces
  readme        a README has at most 120 lines of 120 columns; a longer line counts as many as it fills
  comments      no comment begins with Of, Those, Who or That: it begins with a verb or its subject

A row is a ceiling. One of something that keeps the limit, or is gone, is a breach too, and so is a commit that raises a
row beside other changes (weight_history.py).
"""
import re
import tomllib

from host_state import classes, statements
from weight_history import rises_in_history

ROWS = "tools/limits.toml"
MAX_DECLARATIONS = 45
MAX_README_LINES = 120
COLUMNS = 120
POOR_START = re.compile(r"//+ *(?:Of|Those|Who|That)\b")


def read_rows(root):
    path = root / ROWS
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def declarations(codes):
    """Yields (name, number, place) of each class outside of tests; `codes` is {file: code}."""
    for file, line, name, _, body in classes(codes):
        yield name, sum(1 for text in statements(body) if text.strip()), f"{file}:{line}"


def readme_lines(root, readmes):
    for path in readmes:
        where = path.relative_to(root).as_posix()
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        yield where, sum(max(1, -(-len(line) // COLUMNS)) for line in lines), where


def over_rows(kind, found, limit, rows):
    """Yields a line for each of `found`, (name, number, place), that is over `limit` and its row, and for rows in vain."""
    listed = set()
    for name, number, place in found:
        if number <= limit:
            continue
        listed.add(name)
        if number > rows.get(name, limit):
            yield f"{place}: {name} has {number} {kind}; it may have {rows.get(name, limit)}"
    yield from (f'{ROWS}: "{name}" keeps the limit of {limit} {kind}, or is gone; take its row out'
                for name in rows.keys() - listed)


def poor_comments(texts, allowed):
    """Yields a line if more than `allowed` comments begin with none of their subjects."""
    found = [f"{file}:{number}" for file, text in texts.items() for number, line in enumerate(text.splitlines(), 1)
             if POOR_START.search(line)]
    if len(found) > allowed:
        yield (f"{', '.join(found)}: a comment begins with a verb or its subject, not with Of, Those, Who or That; "
               f"{ROWS} allows {allowed}, there are {len(found)}")


def breaches(root, codes, texts, readmes):
    """Yields every breach below `root`; `codes` and `texts` are of C++ files, by path."""
    rows = read_rows(root)
    yield from over_rows("declarations", declarations(codes), MAX_DECLARATIONS, rows.get("declarations", {}))
    yield from over_rows("lines of 120 columns", readme_lines(root, readmes), MAX_README_LINES, rows.get("readme", {}))
    yield from poor_comments(texts, rows.get("comments", {}).get("Of, Those, Who, That", 0))
    yield from rises_in_history(root, ROWS, None, lambda text: None)

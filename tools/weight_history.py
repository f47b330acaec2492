"""Finds the commits that raise a row of tools/weight.toml or tools/limits.toml beside other changes, or without naming
the issue.

A commit raises what the file allows if a row that it had has a larger number, or if new rows make the sum of a count
larger (rows that divide another row's numbers do not). A reference of CI that takes less time raises all of its seconds.
"""
import re
import tomllib

from count_code import git, is_repository

ISSUE = re.compile(r"\bissue #?\d+|#\d+\b", re.I)
REFERENCE = ".ci/reference.cpp"  # its seconds stand in the file


def numbers_of(root, commit, path):
    """Returns {(count, row): number} of the file in `commit`, or None where the commit does not have it or it is no TOML."""
    text = git(root, "show", f"{commit}:{path}")
    try:
        table = tomllib.loads(text) if text is not None else None
    except tomllib.TOMLDecodeError:
        return None
    if table is None:
        return None
    ci = table.get("ci", {})
    numbers = {(count, folder): number for folder, row in table.get("folders", {}).items() for count, number in row.items()}
    for kind in ("seconds", "fixed"):
        numbers |= {(kind, stage): number for stage, number in ci.get(kind, {}).items()}
    for kind in ("declarations", "readme", "comments"):
        numbers |= {(kind, name): number for name, number in table.get(kind, {}).items()}
    return numbers | ({("speed", "reference"): 1 / ci["reference"]} if ci.get("reference") else {})


def raised_rows(old, new):
    """Returns the rows that `new` has with a larger number than `old`, and those that make a sum larger by being there."""
    raised = {row for key, number in new.items() if number > old.get(key, number) for row in key[1:]}
    for count in {count for count, _ in new}:
        born = {row for kind, row in new if kind == count and (kind, row) not in old}
        sums = [sum(number for (kind, _), number in table.items() if kind == count) for table in (old, new)]
        if born and sums[1] > sums[0]:
            raised |= born
    return raised


def breach_of(root, path, commit, parents):
    """Returns what is wrong with how `commit` changes the rows, or None."""
    new = numbers_of(root, commit, path)
    olds = [numbers_of(root, parent, path) for parent in parents]
    if new is None or not olds or None in olds:
        return None  # the file begins here
    old = {key: max(numbers.get(key, 0) for numbers in olds) for key in set().union(*olds)}
    raised = raised_rows(old, new)
    if not raised:
        return None
    rows = ", ".join(sorted(raised))
    if len(parents) > 1:
        return f"a merge raises {rows}"
    if not ISSUE.search(git(root, "show", "-s", "--format=%B", commit) or ""):
        return f'raises {rows} and names no issue ("issue 30")'
    # A folder that begins brings its row with it.
    old_rows = {row for _, row in old}
    if all(row not in old_rows and git(root, "cat-file", "-e", f"{parents[0]}:{row}") is None for row in raised):
        return None
    changed = (git(root, "diff-tree", "-r", "--name-only", "--no-commit-id", commit) or "").splitlines()
    others = [name for name in changed if name not in (path, REFERENCE)]
    return f"raises {rows} beside other changes ({others[0]}{', ...' if len(others) > 1 else ''})" if others else None


def rises_in_history(root, path, base, note):
    """Yields the breaches of the commits of base..HEAD; without a base, of those that the upstream branch lacks, and HEAD."""
    if not is_repository(root) or git(root, "rev-parse", "--verify", "-q", "HEAD") is None:
        note("weigh: there is no git history here, so who raised a row is not checked")
        return
    start = base or "@{upstream}"
    if base and git(root, "rev-parse", "--verify", "-q", f"{base}^{{commit}}") is None:
        yield f"--history {base}: this repository has no such commit; fetch it, or name another"
        return
    head = git(root, "log", "-1", "--format=%H %P") or ""
    others = git(root, "log", "--full-history", "--format=%H %P", f"{start}..HEAD", "--", path) or ""
    if len(head.split()) < 2 and git(root, "rev-parse", "--is-shallow-repository") == "true\n":
        note("weigh: this clone is shallow and has no parent of HEAD, so who raised a row is not checked")
    for line in sorted(set((head + others).splitlines())):
        commit, *parents = line.split()
        breach = breach_of(root, path, commit, parents)
        if breach:
            yield f"{commit[:12]}: {breach}; a row of {path} rises in a commit that does nothing else and names the issue"

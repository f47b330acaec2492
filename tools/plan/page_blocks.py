#!/usr/bin/env python3
"""Commands in pages are run, and what they print stands below them: each block that begins with "$ sherd".

Usage: page_blocks.py SHERD PAGE...            status 1, and the first line that differs, where a page says something else
       page_blocks.py --write SHERD PAGE...    writes what the program prints
Commands run in the repository's root by a shell that finds the program SHERD as `sherd`.
"""
import itertools
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```\n(\$ sherd [^\n]*(?:\\\n[^\n]*)*\n)(.*?)^```$", re.M | re.S)


def printed(command, sherd):
    """What the shell prints for a block's first line, without its prompt."""
    path = f"{pathlib.Path(sherd).resolve().parent}:{os.environ['PATH']}"
    run = subprocess.run(command.removeprefix("$ "), shell=True, cwd=ROOT, env={**os.environ, "PATH": path},
                         stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout


def main(args):
    writes = args[:1] == ["--write"]
    sherd, *pages = args[1:] if writes else args
    failures = 0
    for page in map(pathlib.Path, pages):
        text = page.read_text(encoding="utf-8")
        if not BLOCK.search(text):
            sys.exit(f"{page}: no block begins with \"$ sherd\"")
        new = BLOCK.sub(lambda block: f"```\n{block[1]}{printed(block[1], sherd)}```", text)
        if writes:
            page.write_text(new, encoding="utf-8")
        elif new != text:
            failures += 1
            for old, now in itertools.zip_longest(text.splitlines(), new.splitlines()):
                if old != now:
                    print(f"{page}: the page has\n  {old}\nand the program prints\n  {now}")
                    break
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)

"""Writes each block of C++ in README.md and docs/*.md that has a main() into a file of its own, as a reader pastes it,
and prints the names of the programs, separated by semicolons. Usage: paste.py ROOT FOLDER
"""
import pathlib
import re
import sys

BLOCK = re.compile(r"^(?P<fence>```+|~~~+) *(?:cpp|c\+\+|cc|cxx)?[ \t]*\n(?P<text>.*?)^(?P=fence)", re.S | re.M | re.I)


def programs(page):
    """The blocks of a page's text that are whole programs."""
    return [block["text"] for block in BLOCK.finditer(page) if re.search(r"^int main\s*\(", block["text"], re.M)]


def main():
    root, folder = map(pathlib.Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        shown = programs(page.read_text(encoding="utf-8"))
        assert shown or page != root / "README.md", "README.md shows no program with a main()"
        for number, text in enumerate(shown, 1):
            names.append(f"{page.stem}_{number}")
            (folder / f"{names[-1]}.cpp").write_text(text, encoding="utf-8")
    print(";".join(names))


if __name__ == "__main__":
    main()

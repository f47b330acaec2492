"""Programs shown in pages are those that are built: each ```cpp block under a line that names tools/examples/X.cpp holds
lines of that file, in its order. Usage: excerpts_test.py ROOT PAGE..."""
import pathlib
import re
import sys


def excerpts(page):
    """Yields (example, lines) for every block of C++ after the page names an example, once for each naming."""
    example, block = None, None
    for line in page.read_text().splitlines():
        if block is not None:
            if line.startswith("```"):
                yield example, block
                example, block = None, None
            else:
                block.append(line.strip())
        elif line.startswith("```cpp") and example:
            block = []
        elif found := re.search(r"`(tools/examples/\w+\.cpp)`", line):
            example = found[1]


def missing(shown, source):
    """The first line shown that does not follow in the source; None if all do."""
    rest = iter(source)
    return next((line for line in shown if line and line not in rest), None)


root, pages = pathlib.Path(sys.argv[1]), sys.argv[2:]
failures = 0
for page in pages:
    found = list(excerpts(root / page))
    if not found:
        failures += 1
        print(f"{page}: shows no example")
    for example, shown in found:
        source = [line.strip() for line in (root / example).read_text().splitlines()]
        if (line := missing(shown, source)) is not None:
            failures += 1
            print(f"{page}: not in {example}, or not in this order: {line}")
print(f"{failures} pages are wrong" if failures else "the pages show what is built")
sys.exit(bool(failures))

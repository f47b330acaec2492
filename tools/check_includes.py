#!/usr/bin/env python3
"""Checks that every header names the standard headers it uses, itself or through the project headers it includes.

The target `headers` compiles every header alone, behind the precompiled header (cmake/pch.h), which is what makes it
quick. A standard header that is precompiled cannot be missed there, so this looks for the names of those alone.

Usage: check_includes.py [ROOT]   (ROOT is the repository, by default the one this file is in.) Exit status 1 on a breach.
"""
import functools
import pathlib
import re
import sys

# Names of each precompiled header, and what else brings them.
NAMES = {
    "algorithm": r"std::(?:ranges::)?(?:sort|stable_sort|find|find_if|any_of|all_of|none_of|copy|copy_n|fill|fill_n|min|max|"
                 r"clamp|count|count_if|equal|reverse|transform|lower_bound|upper_bound|min_element|max_element)\b",
    "array": r"std::array\b",
    "atomic": r"std::(?:atomic\w*|memory_order\w*)\b",
    "chrono": r"std::chrono\b",
    "cmath": r"std::(?:sqrt|exp|log|pow|abs|fabs|isfinite|isnan|isinf|floor|ceil|lround|tanh|erf|fma)\b",
    "cstdint": r"std::u?int(?:8|16|32|64|ptr)_t\b",
    "cstring": r"std::(?:memcpy|memmove|memset|memcmp|strlen)\b",
    "functional": r"std::(?:function|hash|less|greater|plus|bind_front|reference_wrapper)\b",
    "map": r"std::(?:multi)?map\b",
    "memory": r"std::(?:unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared|enable_shared_from_this|addressof)\b",
    "mutex": r"std::(?:mutex|lock_guard|unique_lock|scoped_lock|call_once|once_flag|recursive_mutex)\b",
    "optional": r"std::(?:optional|nullopt)\b",
    "span": r"std::span\b",
    "string": r"std::(?:string|to_string|getline|stoi|stod)\b",
    "string_view": r"std::string_view\b",
    "unordered_map": r"std::unordered_(?:multi)?map\b",
    "vector": r"std::vector\b",
    "fmt/format.h": r"fmt::",
}
ALSO = {"string_view": {"string"}, "fmt/format.h": {"fmt/core.h", "fmt/ranges.h", "fmt/ostream.h"},
        "functional": {"unordered_map"}, "memory": {"functional"}}
FOLDERS = ("include", "runtime", "dtensor", "compile", "nn", "tools")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]*)[>"]', re.M)
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
PATTERNS = {header: re.compile(names) for header, names in NAMES.items()}


class Tree:
    def __init__(self, root):
        self.root = root

    @functools.cache
    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    @functools.cache
    def brings(self, path):
        """The standard headers that a project header includes, directly or not."""
        found = set()
        for kind, name in INCLUDE.findall(self.text(path)):
            if kind == "<":
                found.add(name)
            elif (self.root / name).is_file():
                found |= self.brings(name)
        return found

    def breaches(self, path):
        code = NO_CODE.sub(" ", INCLUDE.sub("", self.text(path)))
        for header, pattern in PATTERNS.items():
            use = pattern.search(code)
            if use and not ({header} | ALSO.get(header, set())) & self.brings(path):
                yield f"{path}: {use[0]} needs #include <{header}>"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    tree = Tree(root)
    headers = [path.relative_to(root).as_posix() for folder in FOLDERS for path in sorted((root / folder).rglob("*.h"))]
    breaches = [breach for path in headers for breach in tree.breaches(path)]
    for breach in breaches:
        print(breach)
    print(f"check_includes: {len(headers)} headers, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes the source of a libcuda.so.1 that knows no device: enough for cuDNN to compile plans for a described one.

Functions that load compiled code give a handle that nobody follows; other functions of code say success; all else says
CUDA_ERROR_STUB_LIBRARY. Usage: fake_driver.py NM STUB_LIBCUDA OUTPUT.c
"""
import re
import subprocess
import sys

GIVES_HANDLE = re.compile(r"cu(LibraryLoadData|LibraryGetKernel|LibraryGetModule|KernelGetFunction|ModuleLoad\w*|ModuleGetFunction)$")
SUCCEEDS = re.compile(r"cu(Library|Kernel|Module|Func)")
STUB_LIBRARY = 34


def definition(name):
    if GIVES_HANDLE.match(name):
        return f"int {name}(void** handle) {{ *handle = (void*)8; return 0; }}"
    return f"int {name}(void) {{ return {0 if SUCCEEDS.match(name) else STUB_LIBRARY}; }}"


def main():
    nm, stub, output = sys.argv[1:]
    listing = subprocess.run([nm, "-D", "--defined-only", stub], check=True, capture_output=True, text=True).stdout
    names = [words[2] for words in map(str.split, listing.splitlines()) if len(words) == 3 and words[1] == "T"]
    with open(output, "w", encoding="ascii") as file:
        file.write("\n".join(map(definition, names)) + "\n")


if __name__ == "__main__":
    main()

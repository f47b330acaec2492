"""cmake/header_hash.cmake: the number changes with every header that a backend's library is compiled with, and the file
is left alone, with its time, while it does not.

Usage: header_hash_test.py CMAKE SCRIPT
"""
import os
import pathlib
import subprocess
import sys
import tempfile


def main():
    cmake, script = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        out = root / "out/hash.h"

        def result(name=None, text=None):
            if name:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            subprocess.run([cmake, f"-DROOT={root}", f"-DOUT={out}", "-P", script], check=True)
            return out.read_text()

        first = result("runtime/op/core/op.h", "struct Op { int a; short b; };\n")
        os.utime(out, (1, 1))
        assert result() == first and out.stat().st_mtime == 1, "written again without a change"
        assert result("runtime/cpu/kernel.h", "int x;\n") == first, "headers of kernels do not cross the border"
        assert result("runtime/op/core/op.h", "struct Op { short b; int a; };\n") != first, "fields changed places"
        assert result("runtime/op/core/op.h", "struct Op { int a; short b; };\n") == first
        assert result("runtime/exec/new.h", "") != first, "a new header"


main()

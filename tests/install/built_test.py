"""tools/quickstart builds every file of the build tree that `cmake --install` takes, in the configuration at hand: with or
without nvcc, with or without oneDNN.

Usage: built_test.py SOURCE BUILD
"""
import pathlib
import re
import subprocess
import sys


def main():
    source, build = map(pathlib.Path, sys.argv[1:])
    targets = re.findall(r"^build (\w+)$", (source / "tools/quickstart").read_text(), re.M)
    assert targets, "tools/quickstart has no line `build TARGET`"
    graph = subprocess.run(["ninja", "-C", build, "-t", "graph", *targets], check=True, stdout=subprocess.PIPE,
                           text=True).stdout
    made = set(re.findall(r'label="([^"]*)"', graph))
    # Programs and libraries; the package's files are written by the configure.
    installed = re.findall(rf'TYPE (?:SHARED_LIBRARY|EXECUTABLE) FILES "{build}/([^"]*)"',
                           (build / "cmake_install.cmake").read_text())
    assert {"bin/sherd", "lib/libsherd.so", "lib/libsherd_train.so"} <= set(installed), installed
    missing = set(installed) - made - {"bin/sherd-bench"}  # installed where somebody has built it
    assert not missing, f"installed, but not built by the targets {targets} of tools/quickstart: {missing}"
    for example in ("bin/tiny", "bin/two_axes", "bin/train_text"):
        assert example in made, f"the README names {example}"


main()

"""cmake/mpi.cmake: MPI is used where its compiler wrapper works, and where it does not the configure goes on and says why.

Usage: mpi_test.py CMAKE SOURCE
"""
import os
import pathlib
import subprocess
import sys
import tempfile

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES NONE)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${{CMAKE_BINARY_DIR}}/bin)
include({source}/cmake/mpi.cmake)
if(SHERD_MPICXX)
  sherd_mpi_program(peer ${{CMAKE_SOURCE_DIR}}/peer.cpp)
endif()
"""
# What openmpi-bin leaves without the headers of libopenmpi-dev: find_package(MPI) raises for these answers.
WITHOUT_HEADERS = """#!/bin/sh
case "$*" in
  -showme:compile) echo "-I/nonexistent/openmpi/include" ;;
  -showme:incdirs) echo "/nonexistent/openmpi/include" ;;
  -showme:*) ;;
  *) exec c++ -I/nonexistent/openmpi/include "$@" ;;
esac
"""
WITH_HEADERS = """#!/bin/sh
exec c++ -I{include} "$@"
"""


def main():
    cmake, source = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "include").mkdir()
        (root / "include/mpi.h").write_text("inline int MPI_Init(int*, char***) { return 0; }\n")
        (root / "peer.cpp").write_text("#include <mpi.h>\nint main() { return MPI_Init(nullptr, nullptr); }\n")
        (root / "CMakeLists.txt").write_text(PROJECT.format(source=source))
        wrapper = root / "path/mpicxx"
        wrapper.parent.mkdir()
        environment = os.environ | {"PATH": f"{wrapper.parent}:{os.environ['PATH']}"}

        def run(*command):
            done = subprocess.run([cmake, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True)
            assert done.returncode == 0, done.stdout
            return done.stdout

        def configure(script):
            wrapper.write_text(script)
            wrapper.chmod(0o755)
            return run("-G", "Ninja", "-S", str(root), "-B", str(root / "build"))

        out = configure(WITHOUT_HEADERS)
        assert "cannot compile and link" in out and "mpi.h" in out, out
        out = configure(WITH_HEADERS.format(include=root / "include"))
        assert f"MPI: {wrapper}" in out and "cannot" not in out, out
        run("--build", str(root / "build"), "--target", "peer")
        subprocess.run([root / "build/bin/peer"], check=True)


main()

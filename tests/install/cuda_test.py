"""What SHERD_CUDA means: AUTO builds CUDA where nvcc and a driver are, NVCC where nvcc is. A tree goes from one to the other
without compiling libsherd.so again.

Usage: cuda_test.py CMAKE SOURCE
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

cmake, source = sys.argv[1:]
folder = pathlib.Path(tempfile.mkdtemp())
build = folder / "build"


def configure(value, **environment):
    done = subprocess.run([cmake, "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_TESTING=OFF",
                           f"-DSHERD_CUDA={value}"], capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def library():
    """The commands that compile libsherd.so, without those of other libraries."""
    commands = [entry["command"] for entry in json.loads((build / "compile_commands.json").read_text())]
    return sorted(command for command in commands if " -o CMakeFiles/sherd_lib.dir/" in command)


def main():
    status, text = configure("YES")
    assert status != 0 and "SHERD_CUDA is YES; it is AUTO, NVCC, ON or OFF" in text, text

    subprocess.run(["c++", "-shared", "-x", "c++", "/dev/null", "-o", folder / "libcuda.so.1"], check=True)
    status, text = configure("AUTO")
    assert status == 0, text
    without = library()
    assert without, "nothing compiles libsherd.so"
    if "no driver at configure time" not in text:
        return  # this host has one, or no nvcc: all is as it was always
    (build / "lib").mkdir(exist_ok=True)
    (build / "lib/libsherd_cuda.so").write_text("of an earlier configure")
    for value, environment in (("NVCC", {}), ("AUTO", {}), ("AUTO", {"LD_LIBRARY_PATH": str(folder)})):
        status, text = configure(value, **environment)
        assert status == 0, text
        built = value == "NVCC" or bool(environment)
        if shutil.which("nvcc"):
            assert ("CUDA backend: not built" not in text) == built, text
        assert library() == without, f"{value} {environment} compiles libsherd.so again"
        assert built or not (build / "lib/libsherd_cuda.so").exists(), "what is not built any more is still found"


try:
    main()
finally:
    shutil.rmtree(folder)

"""A file of the CUDA backend is edited in a bundle, compiled and linked there (tools/gpu/rebuild.sh): the library and the
test program that result hold the edit, and still load. A mistake in it is printed and leaves both as they were.

Usage: rebuild_test.py SOURCE BUILD
"""
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

EDIT = '\nextern "C" __attribute__((visibility("default"))) int sherd_edited() { return 4711; }\n'


def needed(path):
    """The libraries a file is linked to that are no part of CUDA, by name."""
    lines = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout.splitlines()
    return {words[0]: words[2] for words in map(str.split, lines) if len(words) > 2 and words[1] == "=>"}


def make_bundle(bundle, source, build):
    for folder in ("bin", "lib"):
        (bundle / folder).mkdir()
    for name in ("rebuild.sh", "rebuild.py"):
        shutil.copy(source / "tools/gpu" / name, bundle)
    for name in ("lib/libsherd.so", "lib/libsherd_cuda.so", "bin/test_cuda_device"):
        shutil.copy(build / name, bundle / name)
    for name, path in needed(build / "lib/libsherd_cuda.so").items():
        if name.startswith(("libtbb", "libfmt")):
            shutil.copy(path, bundle / "lib")
    subprocess.run([sys.executable, source / "tools/gpu/pack_sources.py", source, build, bundle], check=True)


def main():
    source, build = (pathlib.Path(word) for word in sys.argv[1:])
    with tempfile.TemporaryDirectory() as scratch:
        bundle = pathlib.Path(scratch)
        make_bundle(bundle, source, build)
        edited = bundle / "rebuild/src/runtime/cuda/rows/fill_rows.cu"
        library, tests = bundle / "lib/libsherd_cuda.so", bundle / "bin/test_cuda_device"
        before = library.read_bytes(), tests.read_bytes()

        edited.write_text(edited.read_text() + "\nint oops = ;\n")
        wrong = subprocess.run([bundle / "rebuild.sh", "fill_rows.cu"], capture_output=True, text=True)
        assert wrong.returncode == 1 and "fill_rows.cu" in wrong.stderr and "expected an expression" in wrong.stderr, wrong
        assert (library.read_bytes(), tests.read_bytes()) == before

        edited.write_text(edited.read_text().replace("\nint oops = ;\n", EDIT))
        subprocess.run([bundle / "rebuild.sh", "fill_rows.cu"], check=True)
        assert ctypes.CDLL(str(library)).sherd_edited() == 4711
        names = subprocess.run(["nm", tests], check=True, capture_output=True, text=True).stdout
        assert "T sherd_edited" in names
        assert subprocess.run([tests, "--gtest_list_tests"], capture_output=True,
                              env=dict(os.environ, LD_LIBRARY_PATH=str(bundle / "lib"))).returncode == 0

        unknown = subprocess.run([bundle / "rebuild.sh", "norm.cpp"], capture_output=True, text=True)
        assert unknown.returncode == 1 and "norm.cpp is no file" in unknown.stderr, unknown


main()

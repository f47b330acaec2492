"""Compiles files of the CUDA backend again on the host of the card, and links libsherd_cuda.so and test_cuda_device.

usage: rebuild.sh FILE...      such as norm.cu or runtime/cuda/rows/norm.cu, edited in rebuild/src; "list" names all
       rebuild.sh --headers    everything that a header changes: all files

Wants nvcc, g++ and the CUDA toolkit's cudart; minutes are a file's compile time. Without an edit the result does what the
packed library did. Files compile beside each other.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import time

BUNDLE = pathlib.Path(__file__).absolute().parent
FOLDER = BUNDLE / "rebuild"
CUDA = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
LIBRARY, TESTS = "lib/libsherd_cuda.so", "bin/test_cuda_device"


def fail(text):
    sys.exit(f"rebuild: {text}")


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        fail(f"{words[0]} failed with {done.returncode}\n{(done.stdout + done.stderr)[-6000:]}")
    return done


def compile_one(source, command):
    start = time.monotonic()
    out = FOLDER / "objects" / command["object"]
    words = [word.replace("{root}", str(FOLDER / "src")).replace("{out}", str(out)) for word in command["words"]]
    # What is no one's own stands beside the sources; elsewhere it is where the compiler looks anyway.
    words.insert(1, f"-I{FOLDER / 'src/others'}")
    run(words)
    print(f"rebuild: {source}: {time.monotonic() - start:.0f} s", flush=True)


def find(name, folders):
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def libraries():
    """What is linked beside the objects: of the bundle, of CUDA; cuBLASLt's may be in a wheel of Python's."""
    folders = [CUDA / "lib64", CUDA / "lib", CUDA / "targets/x86_64-linux/lib"]
    searched = folders + [pathlib.Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    try:
        import nvidia
        searched += [path for root in nvidia.__path__ for path in pathlib.Path(root).glob("*/lib")]
    except ImportError:
        pass
    found = [find("libcublasLt.so", searched) or find("libcublasLt.so.13", searched), find("libcudart_static.a", searched)]
    if None in found:
        fail(f"libcublasLt.so or libcudart_static.a is in none of {', '.join(map(str, searched))}")
    own = sorted(path for pattern in ("libsherd.so", "libtbb.so*", "libfmt.so*") for path in (BUNDLE / "lib").glob(pattern))
    return [*own, *found, "-lrt", "-lpthread", "-ldl"]


def link(target, inputs, flags, beside):
    objects = [FOLDER / "objects" / name for name in inputs]
    objects = [path for path in objects if path.exists()]  # CUDA's static libraries are taken from the host
    part = BUNDLE / (target + ".part")
    archives = [path for path in objects if path.suffix == ".a"]
    run(["g++", *flags, "-o", part, *[path for path in objects if path.suffix == ".o"], "-Wl,--start-group", *archives,
         "-Wl,--end-group", *beside])
    part.replace(BUNDLE / target)  # programs that run keep the file they have open


def main():
    known = json.loads((FOLDER / "rebuild.json").read_text())
    names = sys.argv[1:]
    if not names or names == ["list"] or "--help" in names:
        print(__doc__, *sorted(known["compile"]), sep="\n")
        return
    for tool in ("nvcc", "g++"):
        if not shutil.which(tool):
            os.environ["PATH"] += f":{CUDA / 'bin'}"
        if not shutil.which(tool):
            fail(f"{tool} is not on this host")
    chosen = []
    for name in known["compile"] if names == ["--headers"] else names:
        matches = [source for source in known["compile"] if source == name or source.endswith("/" + name)]
        if len(matches) != 1:
            fail(f"{name} is {'no' if not matches else 'more than one'} file of rebuild/src that is compiled; see `rebuild.sh list`")
        chosen += matches
    if not (FOLDER / "objects").exists():
        with tarfile.open(FOLDER / "objects.tar.xz") as archive:
            archive.extractall(FOLDER / "objects.part")
        (FOLDER / "objects.part").rename(FOLDER / "objects")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda source: compile_one(source, known["compile"][source]), chosen))
    beside = libraries()
    link(LIBRARY, known["link"][LIBRARY], ["-shared", "-fPIC", "-Wl,-soname,libsherd_cuda.so", "-Wl,-rpath,$ORIGIN"], beside)
    link(TESTS, known["link"][TESTS], ["-Wl,-rpath,$ORIGIN/../lib"], beside)
    print(f"rebuild: {LIBRARY} and {TESTS} are new")


main()

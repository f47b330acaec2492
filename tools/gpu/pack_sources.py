"""Puts into a bundle what compiles one file of the CUDA backend again and links what it is in (rebuild.py).

usage: pack_sources.py ROOT BUILD BUNDLE

BUNDLE/rebuild gets the sources of runtime/cuda and of the device's tests with every header they include but those of the
compiler and of CUDA, the compile commands as words in which {root} and {out} stand for folders, and all objects.
"""

import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile

LIBRARY, TESTS = "lib/libsherd_cuda.so", "bin/test_cuda_device"
# Headers that come with the compiler, the C library, the kernel and the toolkit: the host's own.
SYSTEM = re.compile(r"/usr/include/(c\+\+|x86_64-linux-gnu|linux|asm|asm-generic)/|/usr/include/(?!cudnn)[^/]*$|/usr/lib/gcc/|/usr/local/cuda")


def ninja(build, *words):
    return subprocess.run(["ninja", "-C", build, "-t", *words], check=True, capture_output=True, text=True).stdout


def link_inputs(build, target):
    """The objects and archives that a target is linked from, as they stand in its link command."""
    command = ninja(build, "commands", "-s", target)
    return list(dict.fromkeys(word for word in shlex.split(command) if word.endswith((".o", ".a"))))


def headers(build, objects):
    found = set()
    for line in ninja(build, "deps", *objects).splitlines():
        if line.startswith("    "):
            path = line.strip()
            found.add(path if path.startswith("/") else str((build / path).resolve()))
    return sorted(path for path in found if not SYSTEM.match(path))


def placed(path, root, build):
    """Where a header or source goes below rebuild/src: as in the checkout; generated ones and others' beside it."""
    for base, folder in ((build, "build"), (root, "")):
        try:
            return pathlib.Path(folder) / path.relative_to(base)
        except ValueError:
            pass
    return pathlib.Path("others") / path.relative_to("/usr/include")


def main():
    root, build, bundle = (pathlib.Path(word).absolute() for word in sys.argv[1:])
    folder = bundle / "rebuild"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "src").mkdir(parents=True)
    commands = {str((pathlib.Path(entry["directory"]) / output)): entry
                for entry in json.loads((build / "compile_commands.json").read_text())
                for output in re.findall(r" -o (\S+)", entry["command"])}
    inputs = {target: link_inputs(build, target) for target in (LIBRARY, TESTS)}
    backend = [name for name in inputs[LIBRARY] if name.endswith(".o")]
    kernels = [name for name in inputs[TESTS] if name.endswith(".cu.o") and name not in backend]

    compile_commands = {}
    for name in backend + kernels:
        entry = commands[str(build / name)]
        words = shlex.split(entry["command"])
        words = words[next(i for i, word in enumerate(words) if re.search(r"(nvcc|\+\+)$", word)):]  # no launcher
        source = str(pathlib.Path(entry["file"]).relative_to(root))
        text = [word.replace(str(build), "{root}/build").replace(str(root), "{root}") for word in words]
        text[text.index("-o") + 1] = "{out}"
        text[0] = pathlib.Path(text[0]).name
        compile_commands[source] = {"object": name, "words": text}

    sources = [root / source for source in compile_commands]
    for path in sources + [pathlib.Path(name) for name in headers(build, backend + kernels)]:
        to = folder / "src" / placed(path, root, build)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    with tarfile.open(folder / "objects.tar.xz", "w:xz", preset=1) as archive:
        for name in dict.fromkeys(inputs[LIBRARY] + inputs[TESTS]):
            path = build / name if not name.startswith("/") else pathlib.Path(name)
            if "/cuda/" not in str(path.parent) or path.suffix == ".o":  # CUDA's static libraries are the host's
                archive.add(path, arcname=name.lstrip("/"))
    (folder / "rebuild.json").write_text(json.dumps({
        "compile": compile_commands,
        "link": {target: [name.lstrip("/") for name in names] for target, names in inputs.items()}}, indent=1) + "\n")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"pack_sources: {len(compile_commands)} sources, {size / 2**20:.1f} MiB")


main()

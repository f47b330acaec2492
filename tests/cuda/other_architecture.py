"""Compiles every kernel for another architecture than the build's, and reads what ptxas says of each, as
built_library.py does for the build's own.

Usage: other_architecture.py ARCHITECTURE COMPILE_COMMANDS [FILE...]   for example 80 build/release/compile_commands.json

Without files: all. Nothing is linked, no host code is compiled. -v: registers of the kernels that need most.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import built_library


def command_for(entry, architecture, cubin):
    """The build's command, for device code of one architecture only and without a compiler cache."""
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if re.search(r"(^|/)nvcc$", word)):]
    kept, skip = [], False
    for word in words:
        if skip or word in ("-c", "-x", "cu") or word.startswith(("--generate-code", "-gencode", "-arch")):
            skip = False
            continue
        if word in ("-o", "-MF", "-MT"):
            skip = True
            continue
        if word not in ("-MD", "-MMD", entry["file"]):
            kept.append(word)
    return kept + [f"-arch=sm_{architecture}", "-cubin", "-x", "cu", entry["file"], "-o", cubin]


def of_files(entry):
    """The entry; or, for a unit that includes several files (cmake/cuda.cmake), one for each of them."""
    root = pathlib.Path(__file__).absolute().parents[2]
    members = re.findall(r'^#include "(.*\.cu)"$', pathlib.Path(entry["file"]).read_text(), re.M)
    for path in [str(root / name) for name in members] or [entry["file"]]:
        yield {**entry, "file": path, "command": entry["command"].replace(entry["file"], path)}


def compile_one(entry, architecture, folder):
    """(file, number of kernels, faults, report of ptxas)"""
    cubin = str(pathlib.Path(folder, re.sub(r"\W", "_", entry["command"].split(" -o ")[1].split()[0] + entry["file"]) + ".cubin"))
    end = subprocess.run(command_for(entry, architecture, cubin), cwd=entry["directory"], capture_output=True, text=True)
    report = end.stdout + end.stderr
    if end.returncode:
        return entry["file"], 0, [f"{entry['file']}: nvcc failed for sm_{architecture}\n{report[-2000:]}"], report
    path = pathlib.Path(cubin + ".ptxas")
    path.write_text(report)
    count, *faults = built_library.kernel_faults(path)
    return entry["file"], count, faults if count else [f"{entry['file']}: no kernel for sm_{architecture}"], report


def main():
    architecture, commands, *files = [word for word in sys.argv[1:] if word != "-v"]
    entries = [e for unit in json.load(open(commands)) if unit["file"].endswith(".cu") and "nvcc" in unit["command"]
               for e in of_files(unit) if not files or pathlib.Path(e["file"]).name in files]
    jobs = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda entry: compile_one(entry, architecture, folder), entries))
    faults = [fault for _, _, found, _ in results for fault in found]
    print("\n".join(faults) or f"sm_{architecture}: {sum(r[1] for r in results)} kernels of {len(results)} files")
    if "-v" in sys.argv:
        used = [(int(most), name) for _, _, _, report in results
                for name, most in re.findall(r"Compiling entry function '(\w+)'.*?Used (\d+) registers", report, re.S)]
        print(*(f"{registers} {name}" for registers, name in sorted(used, reverse=True)[:20]), sep="\n")
    return bool(faults) or not entries


if __name__ == "__main__":
    sys.exit(main())

"""Looks into the object of every instruction-set level: one global symbol, its entry point, and no writable data.

A second global symbol could be picked by the linker for code that runs on other CPUs; writable data would be state
that exists once per level instead of once per process.
"""
import pathlib
import subprocess
import sys


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def faults(path):
    level = pathlib.Path(path).stem.removeprefix("cpu_")
    entry = f"sherd_cpu_kernels_{level}"
    names = [line.split()[-1] for line in lines("nm", "--defined-only", "--extern-only", path)]
    if names != [entry]:
        yield f"{path}: global symbols are {names[:5]}, not only {entry}"
    for line in lines("size", "-A", path):
        words = line.split()
        if len(words) < 2 or not words[1].isdigit() or int(words[1]) == 0:
            continue
        if words[0].split(".")[1:2] in (["data"], ["bss"], ["tdata"], ["tbss"]) and not words[0].startswith(".data.rel"):
            yield f"{path}: {words[1]} bytes of writable data in {words[0]}"


found = [fault for path in sys.argv[1:] for fault in faults(path)]
print("\n".join(found) or f"{len(sys.argv) - 1} levels are sealed")
sys.exit(bool(found) or len(sys.argv) == 1)

"""Looks into libsherd_cuda.so and at what ptxas said of its kernels, on a machine that needs no GPU.

  needs      neither the driver (libcuda) nor a shared CUDA runtime (libcudart): the library loads on any host
  exports    one symbol of ours, sherd_backend
  kernels    spill no registers, use no static shared memory, and use no more registers than lets their blocks launch
             (tests/support/emulated_gpu/registers.h: the emulated GPU refuses larger blocks by the same table)

Usage: built_library.py LIBRARY OBJECT...   (OBJECT.ptxas is the report of each object that nvcc made.)
"""
import pathlib
import re
import subprocess
import sys

# (part of a kernel's name, registers) of each line; the first that fits.
LIMITS_FILE = pathlib.Path(__file__).parent.parent / "support/emulated_gpu/registers.h"
LIMITS = [(part, int(most)) for part, most in re.findall(r'^ *\{"(\w*)", (\d+)\}', LIMITS_FILE.read_text(), re.M)]
assert LIMITS and LIMITS[-1][0] == "", f"{LIMITS_FILE}: the last line is for all kernels"

COMPILING = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
STATIC_SHARED = re.compile(r"(\d+) bytes smem")


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def library_faults(path):
    for line in lines("readelf", "-d", path):
        if "NEEDED" in line and re.search(r"\[libcuda(rt)?\.so", line):
            yield f"{path}: needs {line.split('[')[1].rstrip(']')}"
    for line in lines("nm", "-D", "--defined-only", "--extern-only", path):
        _, kind, name = line.split()
        if name != "sherd_backend" and kind not in "WVu":  # weak ones are the standard library's templates
            yield f"{path}: exports {name}"


def kernel_faults(report):
    """Yields what is wrong with the kernels of one report; its first item is the number of kernels."""
    kernel, count, faults = "", 0, []
    for line in report.read_text().splitlines():
        if match := COMPILING.search(line):
            kernel, count = f"{match[1]} for {match[2]}", count + 1
        elif (match := SPILLS.search(line)) and match.groups() != ("0", "0"):
            faults.append(f"{kernel}: spills, {match[1]} bytes stored, {match[2]} bytes loaded")
        if match := USED.search(line):
            limit = next(most for part, most in LIMITS if part in kernel)
            if int(match[1]) > limit:
                faults.append(f"{kernel}: {match[1]} registers, the limit is {limit}")
        if (match := STATIC_SHARED.search(line)) and int(match[1]) > 0:
            faults.append(f"{kernel}: {match[1]} bytes of static shared memory; take it by shared<Struct>()")
    return [count, *faults]


def main():
    library, objects = sys.argv[1], [path for path in sys.argv[2:] if path.endswith(".cu.o")]
    faults, kernels = list(library_faults(library)), 0
    for path in objects:
        count, *found = kernel_faults(pathlib.Path(path + ".ptxas"))
        kernels += count
        faults += found if count else [f"{path}.ptxas: reports no kernel"]
    print("\n".join(faults) or f"{kernels} kernels of {len(objects)} files")
    return bool(faults) or not objects


if __name__ == "__main__":
    sys.exit(main())

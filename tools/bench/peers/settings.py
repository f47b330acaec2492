"""Finds the environment in which this Python's torch is fastest on this CPU, by measuring, and prints it as JSON.

OpenBLAS chooses its kernels by the CPU's model number; one it does not know gets slow generic kernels, and then an
OPENBLAS_CORETYPE by hand is what its user would set. So every candidate runs one matrix product in a process of its
own; unset wins unless another is 5 % faster. torch's own vector code needs a capability by name in some versions.
"""

import json
import os
import subprocess
import sys

OPENMP_BLAS = "/usr/lib/x86_64-linux-gnu/openblas-openmp"  # the build whose threads are torch's own

PROBE = """
import sys, time, torch
torch.set_num_threads(1)
a = torch.ones(384, 384)
a @ a
best = 1e9
for _ in range(8):
    start = time.perf_counter()
    a @ a
    best = min(best, time.perf_counter() - start)
print(torch.__version__, 2 * 384**3 / best / 1e9)
"""


def cpu_flags():
    with open("/proc/cpuinfo") as file:
        return set(next((line.split(":")[1] for line in file if line.startswith("flags")), "").split())


def base_settings(flags):
    settings = {"OMP_PROC_BIND": "true"}
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
        settings["ATEN_CPU_CAPABILITY"] = "avx512"
    if os.path.isdir(OPENMP_BLAS):
        settings["LD_LIBRARY_PATH"] = ":".join(filter(None, [OPENMP_BLAS, os.environ.get("LD_LIBRARY_PATH", "")]))
    return settings


def probe(settings):
    environment = {**os.environ, **settings}
    run = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"status {run.returncode}")
    version, gflops = run.stdout.split()
    return version, float(gflops)


def main():
    flags = cpu_flags()
    settings = base_settings(flags)
    candidates = ["", "SkylakeX" if "avx512f" in flags else "Haswell"]
    rates = {}
    for name in candidates:
        version, rates[name] = probe({**settings, **({"OPENBLAS_CORETYPE": name} if name else {})})
    best = max(candidates, key=lambda name: rates[name])
    if best and rates[best] > 1.05 * rates[""]:
        settings["OPENBLAS_CORETYPE"] = best
    described = [f"{name}={value}" for name, value in sorted(settings.items()) if name != "LD_LIBRARY_PATH"]
    described += ["OpenMP OpenBLAS"] if "LD_LIBRARY_PATH" in settings else []
    print(json.dumps({
        "peer": "torch " + version,
        "environment": settings,
        "settings": " ".join(described),
        "probe_gflops": {name or "unset": round(rate, 1) for name, rate in rates.items()},
    }))


main()

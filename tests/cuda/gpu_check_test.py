"""A stage of tools/gpu/gpu_check.sh --dry-run, on a bundle of links into the build tree and the emulated GPU.

Fails if a step fails, the stage takes a minute of processor time, or a limit of the card is missing. Ends with 77
(skipped) if all that is missing are kernels, and names them.

Usage: gpu_check_test.py STAGE SOURCE BUILD   (STAGE "deadline": a stage whose time is over before it begins)
"""
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

PROGRAMS = ["sherd", "bench_gpu_limits", "bench_gpu_limits_emulated", "test_cuda_device"]
LIBRARIES = ["libsherd.so", "libsherd_cuda.so", "emulated/libsherd_cuda_emulated.so"]
OPTIONAL_LIBRARIES = ["emulated/libcudnn.so.9"]  # only where cuDNN's headers are


def make_bundle(folder, source, build):
    """What tools/gpu/pack makes, but that nothing is copied or stripped."""
    links = {f"bin/{name}": build / "bin" / name for name in PROGRAMS}
    links |= {f"lib/{name}": build / "lib" / name for name in LIBRARIES}
    links |= {f"lib/{name}": build / "lib" / name for name in OPTIONAL_LIBRARIES if (build / "lib" / name).exists()}
    links |= {f"tools/bench/peers/{path.name}": path for path in (source / "tools/bench/peers").glob("*.py")}
    links |= {f"configs/{path.name}": path for path in (source / "tools/configs").glob("*.toml")}
    links |= {name: source / "tools/gpu" / name for name in ("gpu_check.sh", "results.py")}
    for name, target in links.items():
        assert target.exists(), f"{target} is not there; tools/gpu/pack would miss it too"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)
    (folder / "manifest.json").write_text("{}\n")


def python_with_torch():
    for python in ("python3", "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
            return python
    return None


def main():
    stage, source, build = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    with tempfile.TemporaryDirectory() as scratch:
        bundle, out = pathlib.Path(scratch, "bundle"), pathlib.Path(scratch, "out")
        make_bundle(bundle, source, build)
        environment = dict(os.environ, OUT=str(out))
        if stage == "deadline":
            environment["DEADLINE"] = "0"
            end = subprocess.run([bundle / "gpu_check.sh", "smoke", "--dry-run"], env=environment)
            steps = json.loads((out / "smoke.json").read_text())["steps"]
            return not (end.returncode and steps and all(s["status"] == 124 and s["seconds"] == 0 for s in steps))
        if stage == "loss" and (python := python_with_torch()):
            environment["PYTHON"] = python
        end = subprocess.run([bundle / "gpu_check.sh", stage, "--dry-run"], env=environment)
        result = json.loads((out / f"{stage}.json").read_text())
        log = (out / f"{stage}.log").read_text()
    limits = re.findall(r"no limit: [^\"]*", log)

    steps = result["steps"]
    failed = [step["step"] for step in steps if step["status"] not in (0, "absent")]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    slow = used.ru_utime + used.ru_stime >= 60
    assert result["stage"] == stage and result["dry_run"] and steps, result
    assert bool(failed) == bool(end.returncode), f"exit status {end.returncode}, failed steps: {failed}"
    sys.stdout.flush()
    if failed or slow or limits:
        print(log[-8000:], f"failed: {failed}, {used.ru_utime + used.ru_stime:.0f} s of a processor", *limits, sep="\n")
    # A row may have no kernel for a device; the script has then done its part.
    missing = set(re.findall(r"no cuda:\d+ kernel for \w+", log))
    if failed and missing and all(reasons_of(step, log) for step in failed):
        print("skipped:", *sorted(missing), sep="\n  ")
        return 77
    return bool(failed or slow or limits)


def reasons_of(step, log):
    """The missing kernels that the log names between this step's headline and the next."""
    return re.findall(r"no cuda:\d+ kernel for \w+", log.split(f"== {step}: ", 1)[1].split("\n== ", 1)[0])


if __name__ == "__main__":
    sys.exit(main())

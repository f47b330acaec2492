"""A stage of tools/gpu/gpu_check.sh --dry-run, on a bundle of links into the build tree and the emulated GPU.

Fails if a step fails, the stage takes a minute of processor time or longer than it may, or a limit of the card is missing.
Ends with 77 (skipped) if all that is missing are kernels, and names them.

Usage: gpu_check_test.py STAGE SOURCE BUILD
   STAGE "deadline": a stage whose time is over before it begins; "lost": a test that loses the device, one that hangs
"""
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

PROGRAMS = ["sherd", "bench_gpu_limits", "bench_gpu_limits_emulated", "test_cuda_device", "test_cuda"]
LIBRARIES = ["libsherd.so", "libsherd_train.so", "libsherd_cuda.so", "emulated/libsherd_cuda_emulated.so"]
OPTIONAL_LIBRARIES = ["emulated/libcudnn.so.9"]  # only where cuDNN's headers are
SHOWN_CHARACTERS = 12_000  # of the end of the output


def make_bundle(folder, source, build):
    """What tools/gpu/pack makes, but that nothing is copied or stripped."""
    links = {f"bin/{name}": build / "bin" / name for name in PROGRAMS}
    links |= {f"lib/{name}": build / "lib" / name for name in LIBRARIES}
    links |= {f"lib/{name}": build / "lib" / name for name in OPTIONAL_LIBRARIES if (build / "lib" / name).exists()}
    links |= {f"tools/bench/peers/{path.name}": path for path in (source / "tools/bench/peers").glob("*.py")}
    links |= {f"configs/{path.name}": path for path in (source / "tools/configs").glob("*.toml")}
    links |= {f"check/{path.name}": path for path in (source / "tools/gpu/check").glob("*.*")}
    links["gpu_check.sh"] = source / "tools/gpu/gpu_check.sh"
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


class DryRun:
    """One stage, over: its exit status, what it printed, its results."""

    def __init__(self, scratch, stage, source, build, *flags, **environment):
        bundle, self.out = pathlib.Path(scratch, "bundle"), pathlib.Path(scratch, "out")
        make_bundle(bundle, source, build)
        self.end = subprocess.run([bundle / "gpu_check.sh", stage, "--dry-run", *flags], stdout=subprocess.PIPE, text=True,
                                  env=dict(os.environ, OUT=str(self.out), PYTHONDONTWRITEBYTECODE="1", **environment))
        self.result = json.loads((self.out / f"{stage}.json").read_text())
        self.log = (self.out / f"{stage}.log").read_text()
        assert self.result["stage"] == stage and self.result["dry_run"] and self.result["steps"], self.result
        assert len(self.end.stdout.rsplit("---- ", 1)[1]) < SHOWN_CHARACTERS


def time_is_over(scratch, source, build):
    run = DryRun(scratch, "smoke", source, build, DEADLINE="0")
    assert run.end.returncode and all(s["status"] == 124 and s["seconds"] == 0 for s in run.result["steps"]), run.result


def lost_device_and_hang(scratch, source, build):
    """Each is reported by its test's name, in the report at the end too; every other test has its result."""
    illegal, hang = "CudaFaults.AReadIsAWait", "CudaCopy.EveryOrderOfDims"
    run = DryRun(scratch, "smoke", source, build, "--hang-after", "5",
                 SHERD_EMULATED_GPU_ILLEGAL_ADDRESS=illegal, SHERD_EMULATED_GPU_HANG=hang)
    sys.stdout.write(run.end.stdout)
    suites = json.loads((run.out / "suites.json").read_text())
    failed = {entry["test"]: entry["what"] for suite in suites.values() for entry in suite["failed"]}
    assert set(failed) == {illegal, hang}, failed
    assert "cudaErrorIllegalAddress" in failed[illegal] and failed[hang].startswith("hung"), failed
    assert not any(suite["not_run"] for suite in suites.values()), suites
    assert all(suite["passed"] > 2 for suite in suites.values()), suites
    assert run.end.returncode == 1 and [s["step"] for s in run.result["steps"] if s["status"] != 0 and s["status"] != "absent"] == ["tests"]
    report = run.end.stdout.rsplit("---- ", 1)[1]
    assert f"{illegal}: lost the device" in report and f"{hang}: hung" in report, report
    assert f"{illegal} alone, with CUDA_LAUNCH_BLOCKING=1:" in report, report


def stage_passes(scratch, stage, source, build):
    environment = {}
    if stage == "loss" and (python := python_with_torch()):
        environment["PYTHON"] = python
    run = DryRun(scratch, stage, source, build, **environment)
    sys.stdout.write(run.end.stdout)
    failed = [step["step"] for step in run.result["steps"] if step["status"] not in (0, "absent")]
    limits = re.findall(r"no limit: [^\"]*", run.log)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    slow = used.ru_utime + used.ru_stime >= 60 or run.result["seconds"] > run.result["limit"]
    assert bool(failed) == bool(run.end.returncode), f"exit status {run.end.returncode}, failed steps: {failed}"
    if failed or slow or limits:
        print(run.log[-8000:], f"failed: {failed}, {used.ru_utime + used.ru_stime:.0f} s of a processor", *limits, sep="\n")
    # A row may have no kernel for a device; the stage has then done its part.
    missing = set(re.findall(r"no cuda:\d+ kernel for \w+", run.log))
    if failed and missing and all(reasons_of(step, run.log) for step in failed):
        print("skipped:", *sorted(missing), sep="\n  ")
        return 77
    return bool(failed or slow or limits)


def reasons_of(step, log):
    """The missing kernels that the log names between this step's headline and the next."""
    return re.findall(r"no cuda:\d+ kernel for \w+", log.split(f"== {step}: ", 1)[1].split("\n== ", 1)[0])


def main():
    stage, source, build = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    with tempfile.TemporaryDirectory() as scratch:
        if stage == "deadline":
            return time_is_over(scratch, source, build)
        if stage == "lost":
            return lost_device_and_hang(scratch, source, build)
        return stage_passes(scratch, stage, source, build)


if __name__ == "__main__":
    sys.exit(main())

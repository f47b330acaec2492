"""tools/gpu/gpu_check.sh --dry-run on a bundle of links into the build tree, with the emulated GPU in the place of a card.

Usage: gpu_check_test.py first|lost SOURCE BUILD
   first: a whole first call passes, within 75 s of processor time; a second on another machine has nothing to do
   lost: a probe that hangs and a test that loses the device cost themselves only; a second call elsewhere runs them again
"""
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

SECONDS, SHOWN_CHARACTERS = 75, 11_500


def make_bundle(folder, source, build):
    """What tools/gpu/pack makes, but that nothing is copied or stripped, and without the card's own tests: those of the
    emulated GPU stand in for them."""
    paths = [*(build / "bin").glob("sherd*"), build / "bin/bench_gpu_limits"]
    links = {f"bin/{path.name}": path for path in paths}
    links |= {f"lib/{path.name}": path for path in (build / "lib").glob("libsherd*.so")}
    links |= {f"tools/bench/peers/{path.name}": path for path in (source / "tools/bench/peers").glob("*.py")}
    links |= {f"configs/{path.name}": path for path in (source / "tools/configs").glob("*.toml")}
    links |= {f"check/{path.name}": path for path in (source / "tools/gpu/check").glob("*.*")}
    links["gpu_check.sh"] = source / "tools/gpu/gpu_check.sh"
    for name, target in links.items():
        assert target.exists(), f"{target} is not there; tools/gpu/pack would miss it too"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)
    (folder / "manifest.json").write_text("{}\n")


class Machine:
    """A host with its folder of what is known, where calls are made."""

    def __init__(self, scratch, name, source, build):
        self.bundle, self.state, self.out, self.build = scratch / "bundle", scratch / name / "state", scratch / name / "out", build
        if not self.bundle.exists():
            make_bundle(self.bundle, source, build)

    def call(self, *words, **environment):
        """Its exit status, report and steps."""
        done = subprocess.run(
            [self.bundle / "gpu_check.sh", *words, "--dry-run", self.build, "--state", self.state], stdout=subprocess.PIPE, text=True,
            env=dict(os.environ, OUT=str(self.out), PYTHON=sys.executable, PYTHONDONTWRITEBYTECODE="1", **environment))
        sys.stdout.write(done.stdout)
        report = (self.out / "report.txt").read_text()
        assert done.stdout.endswith(report) and len(report) <= SHOWN_CHARACTERS, len(report)
        assert sorted(path.name for path in self.out.iterdir()) == ["report.txt", "results.tar.xz"]
        self.known = json.loads((self.state / "state.json").read_text())
        return done.returncode, report, {name: step["status"] for name, step in self.known["steps"].items()}

    def show_failures(self):
        for name, step in self.known["steps"].items():
            if step["status"] == "failed":
                print(f"== {name}: {step['why']}", *step["lines"], sep="\n")


def first(here, elsewhere):
    status, report, found = here.call("first")
    here.show_failures()
    allowed = {"compile": "absent", "races": "absent"}  # neither torch nor NVIDIA's tools are wanted for this
    assert status == 0 and all(how in ("ok", allowed.get(name)) for name, how in found.items()), found
    assert "not reached" not in report.split("-- open questions")[0].replace("not reached\n", ""), report
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_utime + used.ru_stime < SECONDS, used
    began = {name: step["date"] for name, step in here.known["steps"].items()}
    status, _, again = elsewhere.call("again", "--from", here.out / "results.tar.xz")
    kept = [name for name, step in elsewhere.known["steps"].items() if step["date"] == began[name]]
    assert status == 0 and again == found and len(kept) >= len(found) - 4, (again, kept)


def lost(here, elsewhere):
    illegal, hang = "CudaFaults.AReadIsAWait", "scan_kernel"
    words = [word for step in ("embedding", "launches", "suites", "failures") for word in ("--only", step)]
    status, report, found = here.call("first", *words, SHERD_EMULATED_GPU_ILLEGAL_ADDRESS=illegal, SHERD_EMULATED_GPU_HANG=hang)
    assert status == 1 and found["launches"] == "ok", found
    assert {name for name, how in found.items() if how == "failed"} == {"embedding", "suites", "failures"}, found
    for text in (f"{illegal}: lost the device: cudaErrorIllegalAddress", f"{illegal} alone, with CUDA_LAUNCH_BLOCKING=1:", "FAILED embedding"):
        assert text in report, text
    suites = json.loads((here.state / "suites.json").read_text())
    assert {entry["test"] for suite in suites.values() for entry in suite["failed"]} == {illegal}, suites
    assert all(suite["passed"] > 0 and not suite["not_run"] for suite in suites.values()), suites
    status, _, again = elsewhere.call("again", *words, "--from", here.out / "results.tar.xz")
    elsewhere.show_failures()
    assert status == 0 and set(again.values()) == {"ok"}, again


def main():
    stage, source, build = sys.argv[1], pathlib.Path(sys.argv[2]).absolute(), pathlib.Path(sys.argv[3]).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        machines = [Machine(pathlib.Path(scratch), name, source, build) for name in ("here", "elsewhere")]
        {"first": first, "lost": lost}[stage](*machines)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes trainings slow in a known way, and asks `sherd diagnose` why.

Usage: tools/soak/diagnose.py [--sherd build/release/bin/sherd] [--data PATH] [--only WORDS] [--keep FOLDER] [--steps N]
                              [--gains] [--pairs] [--clean] [--record FOLDER]

By default each finding is seeded once: by flags of `sherd train`, by an example whose loader is slow or whose batches have many
lengths, or from outside (the affinity of a rank, a loop beside it). It must come first or second. `--gains` also runs with what
the finding says to do, and compares its gain with the difference of both runs; `--pairs` takes the run without the seed as a baseline, and wants the seed first; `--clean` runs
configurations that have nothing wrong, which may have no finding. `--keep FOLDER` leaves each run's metrics there, `--record FOLDER`
those that have no name of this machine in them, as docs/slow has them. On a machine
that does something else meanwhile few_cpus is found everywhere, and rightly so.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

from jobs import Failure, Job, check

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SECONDS = 300  # of a run
MODEL = ["--vocabulary", "bytes", "--seed", "3", "--batch", "8", "--eval-batches", "1", "--model.layers", "6", "--model.heads", "8",
         "--model.width", "256", "--model.sequence", "128", "--threads", "1"]
SMALL = ["--model.width", "32", "--model.heads", "2", "--model.sequence", "32"]


def threads_of(pid):
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def pin(pid, cpu):
    for thread in threads_of(pid):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, {cpu})


def ranks_of(job):
    return {p.name: p.pid for p in job.processes() if p.name.startswith("rank ")}


class Beside:
    """What goes on beside a job until it ends."""

    def __init__(self, job):
        self.job = job
        self.helpers = []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while self.job.status() is None:
            self.look()
            time.sleep(0.02)

    def look(self):
        pass

    def end(self):
        self.thread.join()
        for helper in self.helpers:
            helper.kill()
            helper.wait()


class SlowRank(Beside):
    """Each rank has a CPU of its own, and rank 1, niced, shares it with a loop."""

    def look(self):
        ranks = ranks_of(self.job)
        cpus = sorted(os.sched_getaffinity(0))
        if len(ranks) < 2 or len(cpus) < 2:
            return
        pin(ranks["rank 0"], cpus[0])
        pin(ranks["rank 1"], cpus[1])
        for thread in threads_of(ranks["rank 1"]):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, min(19, os.nice(0) + 5))
        if not self.helpers:
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            os.sched_setaffinity(loop.pid, {cpus[1]})
            self.helpers.append(loop)


class Crowd(Beside):
    """Loops that go from CPU to CPU: now one rank is late and now the other."""

    def look(self):
        while len(self.helpers) < 2:
            self.helpers.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))


class Seed:
    """A way to be slow. `flags` make it, `usual` are there in the run without it too."""

    def __init__(self, flags=(), usual=(), ranks=2, beside=None, before=(), gains=False, compiled=True, example=()):
        self.example = [str(word) for word in example]
        self.flags, self.usual = list(flags), list(usual) + (["--compile"] if compiled else [])
        self.ranks, self.beside, self.before, self.gains = ranks, beside, list(before), gains


LINK = ["--link", "2.5e8,0"]
SEEDS = {
    "units_coarse": Seed(["--units", "coarse"], LINK, gains=True),
    "units_fine": Seed(["--units", "fine"], ["--link", "4e9,4e-4"], gains=True),
    "prefetch_off": Seed(["--prefetch", "false"], LINK, gains=True),
    "slow_rank": Seed(beside=SlowRank),
    "slow_link": Seed(["--link", "4e7,0"]),
    "wide_reduction": Seed([], ["--param-dtype", "bf16", "--accumulate", "2", "--link", "8e7,0"], gains=True),
    "needless_reshard": Seed([], ["--link", "8e7,0", "--batch", "4"], gains=True),
    "host_bound": Seed([], SMALL, ranks=1, compiled=False),
    "needless_recompute": Seed(["--recompute", "full"], gains=True),
    "few_cpus": Seed(beside=Crowd),
    "few_cpus, taskset": Seed(before=["taskset", "-c", "0"]),
    "data_stall": Seed(example=[60, 20, 1]),
    "eager_fallback": Seed(example=[60, 0, 12]),
    "eval_or_saves": Seed(["--eval-every", "1", "--eval-batches", "4"], gains=True),
    "eval_or_saves, saves": Seed(["--save", "SAVES", "--save-every", "1"], gains=True),
    "small_batch": Seed(["--batch", "2", "--model.sequence", "16"]),
}
CLEAN = {
    "two ranks": (2, []),
    "tp 2": (2, ["--mesh", "tp=2"]),
    "dp2 x tp2": (4, ["--mesh", "dp=2,tp=2"]),
    "bf16": (2, ["--param-dtype", "bf16"]),
}


class Trials:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder

    def train(self, name, seed, flags):
        """The metrics of a run."""
        slug = re.sub(r"\W+", "_", name)
        metrics = self.folder / f"{slug}.jsonl"
        saves = self.folder / f"{slug}.saves"
        subprocess.run(["rm", "-rf", saves], check=True)
        steps = ["--steps", str(self.options.steps)]
        command = [*seed.before, self.options.sherd, "run", "-n", str(seed.ranks), "--", self.options.sherd, "train",
                   "--data", self.options.data, *MODEL, *steps, *seed.usual, *flags, "--metrics", str(metrics)]
        if seed.example:
            command = [str(pathlib.Path(self.options.sherd).parent / "own_loop"), str(metrics), *seed.example]
        command = [str(saves) if word == "SAVES" else word for word in command]
        log = self.folder / f"{slug}.log"
        job = Job(command, log, f"diagnose-{slug}")
        beside = seed.beside(job) if seed.beside else None
        try:
            status = job.wait(SECONDS)
        finally:
            job.end()
            if beside:
                beside.end()
        check(status == 0, f"status {status}: {log.read_text()[-600:]}")
        return metrics

    def diagnose(self, metrics, *flags):
        run = subprocess.run([self.options.sherd, "diagnose", str(metrics), "--json", *flags], capture_output=True, text=True,
                             check=False)
        check(run.returncode == 0, run.stderr)
        result = json.loads(run.stdout)
        total = sum(result["shares"].values())
        check(abs(total - result["step_seconds"]) <= 1e-9, f"shares add up to {total}, a step is {result['step_seconds']}")
        return result

    def seeded(self, name):
        seed, wanted = SEEDS[name], name.split(",")[0]
        metrics = self.train(name, seed, seed.flags)
        result = self.diagnose(metrics)
        ids = [f["id"] for f in result["findings"]]
        place = ids.index(wanted) + 1 if wanted in ids else 0
        line = f"{name:<24} {place or 'not found'}  " + ", ".join(
            f"{f['id']} {1e3 * f['seconds_per_step']:.1f} ms" for f in result["findings"]) + \
            f" of {1e3 * result['step_seconds']:.1f} ms"
        if place and self.options.gains and seed.gains:
            line += self.gain(name, seed, result, result["findings"][place - 1])
        if self.options.pairs and (seed.flags or seed.beside):
            usual = self.train(f"{name}, usual", Seed(ranks=seed.ranks, usual=seed.usual, compiled=False), [])
            beside = self.diagnose(metrics, "--baseline", str(usual))
            baseline, first = beside["baseline"], (beside["findings"] or [{"id": "nothing"}])[0]["id"]
            parts = sum(baseline["difference"].values())
            whole = beside["step_seconds"] - baseline["step_seconds"]
            check(abs(parts - whole) <= 0.03 * abs(whole) + 1e-9, f"parts {parts} of a difference of {whole}")
            line += f"; {baseline['sentence']}; first {first}"
        print(line, flush=True)
        check(place in (1, 2), f"{wanted} is no first or second of {ids}")
        return place

    def gain(self, name, seed, result, finding):
        flags = seed.flags + finding["command"].split()
        after = self.diagnose(self.train(f"{name}, done", Seed(ranks=seed.ranks, usual=seed.usual, compiled=False), flags))
        measured = result["step_seconds"] - after["step_seconds"]
        error = finding["gain"] / measured - 1 if measured else float("inf")
        return f"; gain {1e3 * finding['gain']:.1f} ms said, {1e3 * measured:.1f} ms measured ({100 * error:+.0f} %)"

    def clean(self, name):
        ranks, flags = CLEAN[name]
        result = self.diagnose(self.train(f"clean {name}", Seed(ranks=ranks), flags))
        print(f"clean {name:<18} {[(f['id'], round(1e3 * f['seconds_per_step'], 2)) for f in result['findings']]}; "
              f"{result['bound']}", flush=True)
        check(not result["findings"], "a finding where nothing is wrong")


def record(metrics, folder):
    """A run for docs/slow.md: without paths and names of this machine."""
    header, *lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    header["config"] |= {"data": "docs", "metrics": "", "save": ""}
    for line in lines:
        for rank in line.get("run_times", {}).get("ranks", []):
            rank["host"] = "host"
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [header, *lines])
    (folder / metrics.name).write_text(text)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--sherd", default=str(ROOT / "build/release/bin/sherd"))
    parser.add_argument("--data", default=str(ROOT / "docs"))
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=16)
    for flag in ("gains", "pairs", "clean"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args()
    failed, places = 0, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        trials = Trials(options, folder)
        for name in CLEAN if options.clean else SEEDS:
            if options.only not in name:
                continue
            try:
                places.append(trials.clean(name) if options.clean else trials.seeded(name))
            except Failure as failure:
                failed += 1
                print(f"FAILED {name}: {failure}", flush=True)
        for metrics in folder.glob("*.jsonl") if options.record else []:
            record(metrics, options.record)
    print(f"{failed} failed; {places.count(1)} of {len(places) + failed} first")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

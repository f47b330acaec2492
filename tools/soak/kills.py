#!/usr/bin/env python3
"""Kills trainings at random moments, resumes them, and compares the end with an undisturbed run, bit for bit.

Usage: tools/soak/kills.py [--sherd build/release/bin/sherd] [--trials 300] [--seed N] [--minutes M] [--variants A,B]

A trial trains a tiny model with a save every 5 steps, strikes one process of the job (a rank, the launcher or its
second process) with SIGKILL, SIGTERM, SIGINT or SIGSTOP + SIGKILL, perhaps again after a resume, and lets the run
finish. It fails when
  - a job hangs, leaves a process behind, or ends with a status that the signal does not explain,
  - a save that had been committed is gone, or more steps are lost than lie between two saves,
  - the finished run differs in any bit of its losses or of its last checkpoint from the undisturbed one,
  - the folder does not hold the last 3 saves at the end.
The seed is printed; trial i of seed S is repeated by --seed S --only i. Needs nothing but Python and the program.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

STEPS, EVERY, KEEP, LIMIT = 40, 5, 3, 90.0
SAVED, NOT_SAVED = 4, 5  # exit status of a run that a signal has ended

CONFIG = """
vocabulary = "bytes"
seed = 11
steps = {steps}
batch = 12
threads = 1
eval_batches = 1
[model]
layers = 2
heads = 2
width = 32
sequence = 16
[optimizer]
lr = 1e-3
warmup = 2
decay_steps = {steps}
"""

VARIANTS = {
    "eager": (2, []),
    "eager3": (3, []),
    "captured": (2, ["--compile"]),
    "bf16": (2, ["--param-dtype", "bf16"]),
    "tp": (2, ["--mesh", "tp=2"]),
    "two_axes": (4, ["--mesh", "dp=2,tp=2"]),
    "offload": (2, ["--offload", "optimizer"]),
    "offload_all": (2, ["--offload", "all"]),
    "offload_all_backward": (2, ["--offload", "all", "--optimizer.clip", "0", "--compile"]),
    "offload_parameters": (2, ["--offload", "parameters", "--param-dtype", "bf16"]),
    "offload_backward": (2, ["--offload", "optimizer", "--optimizer.clip", "0", "--compile"]),
    "async": (2, ["--save-async", "true"]),
    "async_captured": (3, ["--save-async", "true", "--compile"]),
    "hsdp": (4, ["--mesh", "replicate=2,dp=2", "--compile"]),
}


class Failure(Exception):
    pass


class Job:
    """One `sherd run`, with a mark in its environment by which its processes are found again."""

    def __init__(self, options, folder, variant, flags, mark):
        ranks, own = VARIANTS[variant]
        self.mark = f"SHERD_SOAK_MARK={mark}"
        environment = dict(os.environ, SHERD_SOAK_MARK=mark)
        command = [options.sherd, "run", "-n", str(ranks), "--", options.sherd, "train", str(options.config),
                   "--save-every", str(EVERY), "--keep", str(KEEP), "--metrics", str(folder / "metrics.jsonl"),
                   "--save", str(folder / "checkpoint")] + own + flags
        self.err = open(folder / "err.txt", "ab")
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=self.err,
                                        stderr=self.err)

    def processes(self):
        """The job's processes: [pid of the launcher, of its second process, of the ranks...], as far as they live."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0") and \
                            (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                        found.append(int(entry.name))
                except OSError:
                    pass  # ended meanwhile
        return sorted(found)

    def wait(self):
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise Failure(f"hangs for more than {LIMIT} s")
        finally:
            if self.process.poll() is None:
                for pid in self.processes():
                    os.kill(pid, signal.SIGKILL)
                self.process.wait()
            self.err.close()
        end = time.monotonic() + 10  # what was killed with its parent may take a moment to go
        while self.processes():
            if time.monotonic() > end:
                raise Failure(f"left behind: processes {self.processes()}")
        return status


def losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    result = {}
    for line in lines:
        try:
            item = json.loads(line)
        except ValueError:
            continue  # the last line of a killed run
        if "loss" in item:
            result[item["step"]] = (item["loss"], item["grad_norm"])
    return result


def saves(folder):
    """Steps of the committed saves, oldest first."""
    found = (folder / "checkpoint").glob("step-*/manifest.json")
    return sorted(int(path.parent.name.split("-")[1].split(".")[0]) for path in found)


def digest(folder):
    sums = hashlib.sha256()
    for path in sorted((folder / "checkpoint" / f"step-{STEPS:06}").glob("rank-*.safetensors")):
        sums.update(path.name.encode() + path.read_bytes())
    return sums.hexdigest()


def check(condition, text):
    if not condition:
        raise Failure(text)


def reference(options, variant, folder):
    folder.mkdir()
    start = time.monotonic()
    status = Job(options, folder, variant, [], f"reference-{variant}").wait()
    check(status == 0, f"the undisturbed run of {variant} ends with status {status}: {tail(folder)}")
    return {"seconds": time.monotonic() - start, "losses": losses(folder), "digest": digest(folder)}


def tail(folder):
    return "\n".join((folder / "err.txt").read_text(errors="replace").splitlines()[-12:])


def strike(job, moment, rng):
    """Waits for the moment; what was done, and the statuses that explain it. None if the job was over by then."""
    try:
        job.process.wait(moment)
        return None, {0}
    except subprocess.TimeoutExpired:
        pass
    pids = job.processes()
    if not pids:
        return None, {0}
    pid = rng.choice(pids)
    kind = rng.choice(["KILL", "KILL", "TERM", "INT", "STOP"])
    place = "launcher" if pid == job.process.pid else "process"
    try:
        if kind == "STOP":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(rng.uniform(0, 0.3))
            os.kill(pid, signal.SIGKILL)
        else:
            os.kill(pid, getattr(signal, "SIG" + kind))
    except ProcessLookupError:
        return None, {0}
    number = signal.SIGKILL if kind in ("KILL", "STOP") else getattr(signal, "SIG" + kind)
    # Of the launcher itself: minus the signal. TERM and INT: saved, or, before there was anything to save, ended by it.
    explained = {0, 1, -number, 128 + number}
    if kind in ("TERM", "INT"):
        explained |= {SAVED}
    return f"{kind} to {place} {pids.index(pid)} of {len(pids)} after {moment:.2f} s", explained


def trial(options, index, references, base):
    rng = random.Random(f"{options.seed}/{index}")
    variant = rng.choice(sorted(references))
    expected = references[variant]
    folder = base / f"trial-{index}"
    folder.mkdir()
    story, kept_before = [variant], []
    try:
        for attempt in range(10):
            resume = ["--resume", str(folder / "checkpoint")] if saves(folder) else []
            job = Job(options, folder, variant, resume, f"{options.seed}-{index}-{attempt}")
            struck, explained = None, {0}
            if attempt < rng.randint(1, 3):
                struck, explained = strike(job, rng.uniform(0, 1.1) * expected["seconds"], rng)
                story.append(struck or "too late to strike")
            status = job.wait()
            check(status in explained, f"ends with status {status}, explained are {sorted(explained)}")
            seen, kept = losses(folder), saves(folder)
            last = max(seen, default=0)
            check(kept or not kept_before, "all saves are gone")
            check(not kept_before or kept[-1] >= kept_before[-1], f"before there were saves {kept_before}, left are {kept}")
            # The line of a step is written before its save, so the save of the last step may be missing.
            certain = (last - 1) // EVERY * EVERY
            if variant.startswith("async"):  # the last save may be in flight, those before it are waited for
                certain = max(certain - EVERY, 0)
            check(not kept or kept[-1] >= certain, f"step {last} was made, but only {kept} are saved")
            check(kept or certain <= 0, f"step {last} was made, and nothing is saved")
            if status == SAVED:
                check(kept and kept[-1] == last, f"status {SAVED}, step {last} was made, saves are {kept}")
            kept_before = kept
            if status == 0 and last == STEPS:
                break
        check(losses(folder) == expected["losses"], "losses differ from the undisturbed run's")
        check(digest(folder) == expected["digest"], "the last checkpoint differs from the undisturbed run's")
        # One more than asked for if the last process was killed between its last save and tidying up. A signal saves too,
        # so not all steps are multiples.
        kept = saves(folder)
        check(KEEP <= len(kept) <= KEEP + 1 and kept[-1] == STEPS and kept[-KEEP] >= STEPS - (KEEP - 1) * EVERY,
              f"at the end the saves are {kept}")
    except Failure as failure:
        return story, f"{failure}\n{tail(folder)}"
    shutil.rmtree(folder)
    return story, None


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sherd", default=str(root / "build/release/bin/sherd"))
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; 0: only after all trials")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="of these only, with commas between them")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="one trial of that seed")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sherd-soak-") as folder:
        base = pathlib.Path(folder)
        (base / "text.txt").write_text("the quick brown fox jumps over a lazy dog;\n" * 60)
        options.config = base / "tiny.toml"
        options.config.write_text(f'data = "{base / "text.txt"}"' + CONFIG.format(steps=STEPS))
        try:
            references = {name: reference(options, name, base / name) for name in options.variants.split(",")}
        except Failure as failure:
            sys.exit(f"soak: {failure}")
        done = struck = failed = 0
        for index in [options.only] if options.only is not None else range(options.trials):
            if options.minutes and time.monotonic() - start > 60 * options.minutes:
                break
            story, failure = trial(options, index, references, base)
            done += 1
            struck += any(" to " in part for part in story)
            failed += failure is not None
            if failure or options.only is not None:
                print(f"trial {index}: {'; '.join(story)}: {failure or 'good'}", flush=True)
        print(f"{done} trials, {struck} struck a live job, {failed} failed, {time.monotonic() - start:.0f} s; "
              f"seed {options.seed}")
        sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

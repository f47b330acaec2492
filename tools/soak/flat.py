#!/usr/bin/env python3
"""Trains a tiny model on 2 ranks with a save every 20 steps, watches what its processes hold, and fails if it grows.

Usage: tools/soak/flat.py [--sherd build/release/bin/sherd] [--steps 20000] [--ranks 2] [--variants sync,async]
                          [--samples FILE]
       tools/soak/flat.py --tables [--share 1] [--only layouts|meshes|recordings|errors] [--seed N]

A few hundred times, further apart in a longer run, it looks at every rank and at both processes of the launcher:
resident memory (own pages, pages of files and shared pages apart), descriptors, threads; and at the folder of saves, and
at all else that the job has written into its folders. The first quarter of the steps is warm-up: the heap finds its
size. Over the rest
  - each kind of memory of each process must not grow by more than 0.05 KB a step: the median of the slopes between
    any two looks, which one jump of the heap does not change (a short run cannot tell less than 1 MB in all). 8 bytes a
    step are kept, for the percentiles of step times,
  - the fewest descriptors and threads that are seen must not be more in the second half of it than in the first (for
    moments there are more: a save opens files), nor the fewest bytes and files on the disk, but for the digits of
    numbers of steps; at most there is one save more than is kept,
  - nothing but the log and the metrics may grow, by a kilobyte a step at most.
At the end the status must be 0, the last 3 saves and nothing else be there, and no process be left. Needs nothing but
Python and the program.

With --tables it runs soak_tables, which stands beside the program, instead: 60,000 layouts, 12,000 meshes with models,
20,000 recordings and 20,000 errors, each of sizes drawn anew, made and dropped; what their process holds after the first
tenth of them and at the end must not differ by more than 2 MB (tests/soak/README.md).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

EVERY, KEEP = 20, 3
WARM_UP = 0.25  # of the steps
KB_PER_STEP, KB_NOTICED = 0.05, 1024  # what may grow, and what a short run cannot tell from noise
LOOKS = 400  # at most: then every second one is dropped, and pauses are twice as long
FIRST_PAUSE = 0.01  # seconds
DIGITS = 256  # bytes: numbers of steps in names and manifests get longer
MEMORY = {"own": "RssAnon", "of files": "RssFile", "shared": "RssShmem"}

CONFIG = """
vocabulary = "bytes"
seed = 11
batch = 4
threads = 1
eval_every = 500
eval_batches = 1
save_minutes = 0
[model]
layers = 2
heads = 2
width = 32
sequence = 16
[optimizer]
lr = 1e-3
warmup = 2
"""

VARIANTS = {
    "sync": [],
    "async": ["--save-async", "true"],
    "captured": ["--save-async", "true", "--compile"],
}


class Failure(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Failure(text)


# ---- one look ----

def tree_size(folder):
    """(bytes, files) below a folder, of what is not removed meanwhile."""
    total = count = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
                count += 1
            except OSError:
                pass
    return total, count


def look_at_process(pid):
    """None if it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        found = {kind: int(fields[key].split()[0]) for kind, key in MEMORY.items()}
        found["descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
        found["threads"] = int(fields["Threads"])
        return found
    except (OSError, KeyError):
        return None


class Metrics:
    """The file of metrics, of which the last whole line tells the step."""

    def __init__(self, path):
        self.path = path

    def step(self):
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 8192))
                lines = file.read().split(b"\n")
        except OSError:
            return 0
        for line in reversed(lines[:-1]):
            try:
                return json.loads(line).get("step", 0)
            except ValueError:
                continue
        return 0


class Job:
    """One `sherd run` in folders of its own, whose processes are found by a mark in their environment."""

    def __init__(self, options, base, variant):
        self.base = base
        for name in ("work", "temporary"):
            (base / name).mkdir(parents=True)
        self.mark = f"SHERD_SOAK_MARK=flat-{variant}-{os.getpid()}"
        name, value = self.mark.split("=")
        self.metrics, self.log = base / "metrics.jsonl", base / "log.txt"
        command = [options.sherd, "run", "-n", str(options.ranks), "--", options.sherd, "train", str(options.config),
                   "--steps", str(options.steps), "--save-every", str(EVERY), "--keep", str(KEEP),
                   "--metrics", str(self.metrics), "--save", str(base / "saves")] + VARIANTS[variant]
        environment = dict(os.environ, TMPDIR=str(base / "temporary"), **{name: value})
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, env=environment, cwd=base / "work", stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)

    def processes(self):
        """{name: pid}: "launcher 0", "launcher 1", "rank 0", ..."""
        found, launchers = {}, 0
        for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                lives = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
            except OSError:
                continue  # ended meanwhile
            if self.mark.encode() not in environment or not lives:
                continue
            rank = [item for item in environment if item.startswith(b"SHERD_RANK=")]
            name = f"rank {int(rank[0].split(b'=')[1])}" if rank else f"launcher {launchers}"
            launchers += not rank
            found[name] = pid
        return found

    def end(self):
        for pid in self.processes().values():
            os.kill(pid, 9)
        self.process.wait()


# ---- a run ----

def watch(options, job, limit):
    """Samples of the run up to its end: [{"step", "processes": {name: {...}}, "disk": {...}}]."""
    samples, names, pause, end = [], {}, FIRST_PAUSE, time.monotonic() + limit
    metrics = Metrics(job.metrics)
    while job.process.poll() is None:
        check(time.monotonic() < end, f"takes more than {limit:.0f} s")
        step = metrics.step()
        if step > 0 and len(names) < options.ranks + 1:
            names = job.processes()
        held = {name: look_at_process(pid) for name, pid in names.items()}
        saves, others = tree_size(job.base / "saves"), [tree_size(job.base / f) for f in ("work", "temporary")]
        if 0 < step < options.steps and all(held.values()):
            samples.append({
                "step": step,
                "processes": held,
                "disk": {"bytes of saves": saves[0], "files of saves": saves[1],
                         "bytes of other files": sum(size for size, _ in others),
                         "other files": sum(count for _, count in others)},
                "written": {"metrics": os.path.getsize(job.metrics), "log": os.path.getsize(job.log)},
            })
        if len(samples) == LOOKS:
            del samples[1::2]
            pause *= 2
        time.sleep(pause)
    check(job.process.returncode == 0,
          f"ends with status {job.process.returncode}:\n{job.log.read_text(errors='replace')[-2000:]}")
    return samples


def check_end(options, job):
    kept = sorted(path.parent.name for path in (job.base / "saves").glob("*/manifest.json"))
    expected = [f"step-{options.steps - EVERY * i:06}" for i in reversed(range(KEEP))]
    check(kept == expected, f"at the end the saves are {kept}, not {expected}")
    inside = {path.name for path in (job.base / "saves").iterdir()}
    check(inside <= {*expected, "lock"}, f"the folder of saves holds {sorted(inside)}")
    left = [str(path) for name in ("work", "temporary") for path in (job.base / name).rglob("*") if path.is_file()]
    check(not left, f"files are left: {left}")
    end = time.monotonic() + 10
    while job.processes():
        check(time.monotonic() < end, f"processes are left: {job.processes()}")
        time.sleep(0.05)


# ---- what grows ----

def slope(points):
    """Of y over x, as Theil and Sen have it."""
    return statistics.median((later[1] - point[1]) / (later[0] - point[0])
                             for i, point in enumerate(points) for later in points[i + 1:] if later[0] > point[0])


def fewest(points):
    """In the first half of the steps, and in the second."""
    middle = (points[0][0] + points[-1][0]) / 2
    return min(value for step, value in points if step <= middle), min(value for step, value in points if step > middle)


def judge_memory(name, kind, points):
    """(line, whether it is flat)."""
    grows, steps = slope(points), points[-1][0] - points[0][0]
    flat = grows <= max(KB_PER_STEP, KB_NOTICED / steps)
    values = [value for _, value in points]
    return f"{name:11} {'memory ' + kind:20} {grows:+8.4f} KB a step, {min(values)} to {max(values)} KB", flat


def judge_count(name, kind, points):
    first, second = fewest(points)
    return f"{name:11} {kind:20} {first}, then {second} at least, {max(value for _, value in points)} at most", \
        second <= first


def judge_disk(kind, points, stays, at_most):
    """`stays`: what is there between saves; a sample within the removal of one may be of less."""
    (first, second), most = fewest(points), max(value for _, value in points)
    may = DIGITS if kind.startswith("bytes") else 0
    return f"{'disk':11} {kind:20} {first}, then {second} at least, {most} at most (may be {at_most})", \
        second <= max(first, stays) + may and most <= at_most


def judge(options, samples, kept):
    """All lines; those of what grows, again. `kept`: (bytes, files) of the saves that stay."""
    stays = {"bytes of saves": kept[0], "files of saves": kept[1]}
    at_most = {"bytes of saves": kept[0] * (KEEP + 1) // KEEP + 4096,
               "files of saves": kept[1] * (KEEP + 1) // KEEP + 1,
               "bytes of other files": 4096, "other files": 4}
    samples = [sample for sample in samples if sample["step"] >= WARM_UP * options.steps]
    check(len(samples) >= 20, f"only {len(samples)} samples after the warm-up; give it more steps")
    verdicts = []
    for name in samples[0]["processes"]:
        for kind in [*MEMORY, "descriptors", "threads"]:
            points = [(sample["step"], sample["processes"][name][kind]) for sample in samples]
            verdicts.append(judge_memory(name, kind, points) if kind in MEMORY else judge_count(name, kind, points))
    for kind in samples[0]["disk"]:
        points = [(sample["step"], sample["disk"][kind]) for sample in samples]
        verdicts.append(judge_disk(kind, points, stays.get(kind, 0), at_most[kind]))
    steps = samples[-1]["step"] - samples[0]["step"]
    for kind in ("metrics", "log"):
        grown = samples[-1]["written"][kind] - samples[0]["written"][kind]
        verdicts.append((f"{'written':11} {kind:20} {grown / steps:.1f} bytes a step", grown / steps <= 1024))
    return [line for line, _ in verdicts], [line for line, flat in verdicts if not flat]


def run(options, base, variant):
    """The lines of what grows."""
    start = time.monotonic()
    job = Job(options, base / variant, variant)
    try:
        samples = watch(options, job, 120 + 0.1 * options.steps)
        check_end(options, job)
        kept = tree_size(job.base / "saves")
    finally:
        job.end()
    lines, growing = judge(options, samples, kept)
    print(f"{variant}: {options.steps} steps, {options.steps // EVERY} saves, {time.monotonic() - start:.0f} s, "
          f"{len(samples)} samples")
    print("".join(f"  {line}\n" for line in lines), end="", flush=True)
    if options.samples:
        pathlib.Path(f"{options.samples}.{variant}.json").write_text(json.dumps(samples))
    return growing


def run_tables(program, arguments):
    if not program.exists():
        print(f"{program} is not there: cmake --build --preset release --target soak_tables", file=sys.stderr)
        sys.exit(2)
    os.execv(program, [str(program), *arguments])


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sherd", default=str(root / "build/release/bin/sherd"))
    parser.add_argument("--steps", type=int, default=20000, help="a multiple of 20")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--variants", default="sync,async", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--samples", help="all samples go to FILE.VARIANT.json")
    parser.add_argument("--tables", action="store_true", help="what is made and dropped, by soak_tables; it has flags of its own")
    options, others = parser.parse_known_args()
    if options.tables:
        run_tables(pathlib.Path(options.sherd).with_name("soak_tables"), others)
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    options.steps -= options.steps % EVERY
    failures = []
    with tempfile.TemporaryDirectory(prefix="sherd-soak-") as name:
        base = pathlib.Path(name)
        (base / "text.txt").write_text("the quick brown fox jumps over a lazy dog;\n" * 60)
        options.config = base / "tiny.toml"
        options.config.write_text(f'data = "{base / "text.txt"}"' + CONFIG)
        for variant in options.variants.split(","):
            try:
                failures += [f"{variant}: grows: {' '.join(line.split())}" for line in run(options, base, variant)]
            except Failure as failure:
                failures.append(f"{variant}: {failure}")
    if failures:
        sys.exit("\n".join(["flat:", *failures]))
    print("nothing grows")


if __name__ == "__main__":
    main()

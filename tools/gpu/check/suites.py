"""Test suites of a gtest program on a card, each in a process of its own, so that a lost device or a hang ends one test.

A test that hangs, crashes or loses the device is the culprit: what comes after it in its suite runs in a new process. Tests
that fail run once more alone with CUDA_LAUNCH_BLOCKING=1, so that an error shows at the launch that made it, and under
compute-sanitizer where that is found.
"""

import concurrent.futures
import re
import time

import stages
from host import result

MARK = re.compile(r"^\[ *(RUN|OK|FAILED|SKIPPED) *\] (\S+?\.[^ ,]+)(?:, where .*)?(?: \((\d+) ms\))?$")


def both_ends(lines, first, last):
    """What failed stands first; the launches that came before a lost device end with the newest."""
    lines = [line for line in lines if line.strip()]
    if len(lines) <= first + last + 1:
        return lines
    return lines[:first] + [f"... {len(lines) - first - last} lines"] + lines[len(lines) - last:]


class Test:
    def __init__(self, name):
        self.name, self.status, self.lines, self.milliseconds = name, "running", [], None


def parse(text):
    """The tests of a log in their order; one whose end is missing is "running"."""
    tests, current = [], None
    for line in text.splitlines():
        mark = MARK.match(line)
        if not mark:
            if current and current.status == "running":
                current.lines.append(line)
        elif mark[1] == "RUN":
            current = Test(mark[2])
            tests.append(current)
        elif current and current.name == mark[2] and current.status == "running":
            current.status = {"OK": "ok", "FAILED": "failed", "SKIPPED": "skipped"}[mark[1]]
            current.milliseconds = int(mark[3] or 0)
    return tests


def list_suites(text):
    """suite -> its tests, of --gtest_list_tests."""
    suites, suite = {}, None
    for line in text.splitlines():
        name = line.split("#")[0].strip()
        if line.startswith("  ") and suite:
            suites[suite].append(f"{suite}.{name}")
        elif re.fullmatch(r"[\w/]+\.", name):
            suite = name[:-1]
            suites[suite] = []
    return suites


def lost_device(test):
    return next((code for code in stages.LOST_DEVICE if any(code in line for line in test.lines)), None)


class Suite:
    """One suite's run. status: ok, failed, or "not run" if the stage's time was over."""

    def __init__(self, name, tests):
        self.name, self.left = name, list(tests)
        self.failures = []  # (test, what happened, its lines)
        self.passed = self.skipped = 0
        self.seconds = 0.0
        self.closer = []    # what the runs after the failure said: (heading, lines)

    @property
    def status(self):
        return "failed" if self.failures else "not run" if self.left else "ok"

    def as_json(self):
        return {"status": self.status, "seconds": round(self.seconds, 1), "passed": self.passed, "skipped": self.skipped,
                "failed": [{"test": test, "what": what} for test, what, _ in self.failures], "not_run": self.left}


class Runner:
    def __init__(self, host, seconds):
        self.host, self.until = host, time.monotonic() + seconds
        self.program = host.test_program()
        self.folder = host.out / "suites"
        self.folder.mkdir(exist_ok=True)

    def time_left(self):
        return min(self.until - time.monotonic(), self.host.left())

    def find(self):
        """All suites in the order of the table."""
        listing = self.folder / "list.txt"
        listing.write_text("")
        ended = self.host.run([self.program, "--gtest_list_tests"], 60, listing)
        text = listing.read_text(errors="replace")
        known = list_suites(text)
        if ended.status or not known:
            raise RuntimeError(f"{self.program} does not list its tests: {text.strip()[-300:] or ended}")
        names = [name for name in stages.SUITES if name in known] + [name for name in known if name not in stages.SUITES]
        if self.host.dry:
            names = [name for name in names if name in stages.DRY_SUITES]
        return [Suite(name, known[name]) for name in names]

    def process(self, tests, label, before=(), environment=(), seconds=stages.SUITE_SECONDS):
        """One process that runs these tests: its end, its log, whether nothing was heard of it for too long."""
        log = self.folder / (re.sub(r"\W+", "_", label) + ".log")
        log.write_text("")
        heard = [0, time.monotonic()]  # bytes of the log, since when so many

        def is_silent():
            size = log.stat().st_size
            if size != heard[0]:
                heard[:] = size, time.monotonic()
            return time.monotonic() - heard[1] > self.host.hang_after

        ended = self.host.run([*before, self.program, "--gtest_color=no", "--gtest_filter=" + ":".join(tests)],
                              min(seconds, self.time_left()), log, environment=environment, watch=is_silent)
        return ended, log.read_text(errors="replace"), is_silent()

    def run(self, suite):
        start = time.monotonic()
        while suite.left and len(suite.failures) < stages.CULPRITS and self.time_left() > 1:
            ended, text, silent = self.process(suite.left, suite.name if not suite.failures else f"{suite.name}-after-{len(suite.failures)}")
            if not self.take(suite, ended, text, silent):
                break
        suite.seconds = time.monotonic() - start
        return suite

    def take(self, suite, ended, text, silent):
        """Counts what a process did, up to its culprit. False if nothing more can be learnt of the suite."""
        for test in parse(text):
            if test.name not in suite.left:
                continue
            if test.status == "running":
                if ended.timed_out and not silent:  # it was at work when the process's time was over
                    suite.failures.append((test.name, f"did not end in the time its suite had, {ended.seconds:.0f} s", test.lines))
                    suite.left.remove(test.name)
                    return False
                how = (f"hung: nothing was heard of it for {self.host.hang_after:.0f} s" if silent else
                       f"ended its process with status {ended.status}")
                suite.failures.append((test.name, how, test.lines))
                suite.left.remove(test.name)
                return True
            suite.left.remove(test.name)
            suite.passed += test.status == "ok"
            suite.skipped += test.status == "skipped"
            if test.status == "failed":
                lost = lost_device(test)
                suite.failures.append((test.name, f"lost the device: {lost}" if lost else "failed", test.lines))
                if lost:
                    return True
        if suite.left:  # it ended before it said anything of these
            suite.failures.append((suite.left[0], f"its process ended with status {ended.status} before it began",
                                   text.splitlines()[-15:]))
            suite.left.pop(0)
        elif ended.status and not suite.failures:
            suite.failures.append((f"{suite.name}.*", f"every test passed, but the process ended with status {ended.status}",
                                   text.splitlines()[-15:]))
        return False

    def look_closer(self, suite):
        """Each failure once more, alone: launches that wait, then the sanitizer. A hang would only hang again."""
        for test, what, _ in suite.failures[:stages.CULPRITS]:
            if what.startswith("hung") or self.time_left() < 5:
                continue
            ended, text, _ = self.process([test], f"{test}-blocking", environment={"CUDA_LAUNCH_BLOCKING": "1"}.items())
            again = parse(text)
            if again and again[0].status == "ok":
                suite.closer.append((f"{test} alone, with CUDA_LAUNCH_BLOCKING=1: passed", []))
            else:
                lines = both_ends(again[0].lines if again else text.splitlines(), 6, 6)
                suite.closer.append((f"{test} alone, with CUDA_LAUNCH_BLOCKING=1:", lines))
            if self.host.has("compute-sanitizer") and not self.host.dry:
                # Each block of memory alone: else what lies beyond one is another's, and no error.
                _, text, _ = self.process([test], f"{test}-sanitizer", before=["compute-sanitizer", "--tool", "memcheck"],
                                          environment={"SHERD_DEVICE_MEMORY": "separate"}.items(), seconds=90)
                found = [line for line in text.splitlines() if line.startswith("=========")]
                suite.closer.append((f"{test} under compute-sanitizer:", found[1:13]))


def run(host, step, failed_only=False):
    runner = Runner(host, step.seconds)
    every = runner.find()
    chosen, untouched = every, {}
    if failed_only:
        before = host.read_json("suites.json") or {}
        chosen = [suite for suite in every if before.get(suite.name, {}).get("status") != "ok"]
        untouched = {name: suite for name, suite in before.items() if name not in {s.name for s in chosen}}
        if not chosen:
            return result(note="no suite failed before")
    parallel = host.sized(stages.PARALLEL_SUITES, 2)
    with concurrent.futures.ThreadPoolExecutor(parallel) as pool:  # in order; results of later ones wait for none
        done = list(pool.map(runner.run, chosen))
        failed = [suite for suite in done if suite.failures]
        list(pool.map(runner.look_closer, failed))
    host.write_json("suites.json", {**untouched, **{suite.name: suite.as_json() for suite in done}})
    left_out = [suite for suite in done if suite.left]
    count = sum(suite.passed for suite in done)
    skipped = sum(suite.skipped for suite in done)
    said = f"{count} tests of {len(done)} suites passed" + (f", {skipped} skipped" if skipped else "")
    if not failed and not left_out:
        return result(note=said)
    why = [f"{test}: {what}" for suite in failed for test, what, _ in suite.failures]
    why += [f"{suite.name}: {len(suite.left)} tests were not run" for suite in left_out]
    lines = []
    for suite in failed:
        for place, (test, what, printed) in enumerate(suite.failures):
            lines.append(f"{test}: {what}")
            if place == 0:  # what comes after it in a suite is often the same
                lines += ["    " + line for line in both_ends(printed, 15, 15 if "lost the device" in what else 0)]
        for heading, printed in suite.closer:
            lines += ["  " + heading, *("    " + line for line in printed)]
    lines += why[-len(left_out):] if left_out else []
    return result(1, why=f"{said}; {len(why)} failures, first {why[0]}", lines=lines)

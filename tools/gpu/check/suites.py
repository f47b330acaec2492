"""Test suites of a gtest program on a card, each in a process of its own, so that a lost device or a hang ends one test.

usage: suites.py            runs every suite that suites.json does not call done, and writes down how it ended
       suites.py --closer   runs what failed once more, each test alone

A test that hangs, crashes or loses the device is the culprit: what comes after it in its suite runs in a new process. Tests
that failed run alone with CUDA_LAUNCH_BLOCKING=1, so that an error shows at the launch that made it, and under
compute-sanitizer where that is found.
"""

import concurrent.futures
import json
import os
import re
import shutil
import sys
import threading
import time

import process
import steps
from host import call, word

DONE = ("ok", "skipped")
MARGIN = 4  # seconds that are left to say what was seen
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
    return next((code for code in steps.LOST_DEVICE if any(code in line for line in test.lines)), None)


class Suite:
    """One suite's run. status: ok, failed, skipped if all of it was, or "not run" if the time was over."""

    def __init__(self, name, tests):
        self.name, self.left = name, list(tests)
        self.failures = []  # (test, what happened, its lines)
        self.passed = self.skipped = 0
        self.seconds = 0.0

    @property
    def status(self):
        return "failed" if self.failures else "not run" if self.left else "ok" if self.passed else "skipped"

    def as_json(self):
        return {"status": self.status, "seconds": round(self.seconds, 1), "passed": self.passed, "skipped": self.skipped,
                "failed": [{"test": test, "what": what} for test, what, _ in self.failures], "not_run": self.left}

    def report(self):
        lines = []
        for place, (test, what, printed) in enumerate(self.failures):
            lines.append(f"{test}: {what}")
            if place == 0:  # what comes after it in a suite is often the same
                lines += ["    " + line for line in both_ends(printed, 15, 15 if "lost the device" in what else 0)]
        return lines + ([f"{self.name}: {len(self.left)} tests were not run"] if self.left else [])


class Runner:
    def __init__(self, of, program):
        self.of, self.program = of, program
        self.until = time.monotonic() + of.seconds - MARGIN
        self.folder = of.folder / "suites"
        self.folder.mkdir(exist_ok=True)
        self.known, self.lock = read(of.folder), threading.Lock()

    def time_left(self):
        return 0 if process.stopping.is_set() else self.until - time.monotonic()

    def find(self):
        """All suites in the order of the table."""
        listing = self.folder / "list.txt"
        listing.write_text("")
        ended = process.run([self.program, "--gtest_list_tests"], self.time_left(), listing)
        text = listing.read_text(errors="replace")
        known = list_suites(text)
        if ended.status or not known:
            raise OSError(f"{self.program} does not list its tests: {text.strip()[-300:] or ended}")
        names = [name for name in steps.SUITES if name in known] + [name for name in known if name not in steps.SUITES]
        if self.of.dry:
            names = [name for name in names if name in steps.DRY_SUITES]
        return [Suite(name, known[name]) for name in names]

    def run_tests(self, tests, label, before=(), environment=(), seconds=steps.SUITE_SECONDS):
        """One process that runs these tests: its end, its log, whether nothing was heard of it for too long."""
        log = self.folder / (re.sub(r"\W+", "_", label) + ".log")
        log.write_text("")
        heard = [0, time.monotonic()]  # bytes of the log, since when so many

        def is_silent():
            size = log.stat().st_size
            if size != heard[0]:
                heard[:] = size, time.monotonic()
            return time.monotonic() - heard[1] > self.of.hang_after

        ended = process.run([*before, self.program, "--gtest_color=no", "--gtest_filter=" + ":".join(tests)],
                            min(seconds, self.time_left()), log, watch=is_silent,
                            environment={**os.environ, **dict(environment)})
        return ended, log.read_text(errors="replace"), is_silent()

    def run(self, suite):
        start = time.monotonic()
        while suite.left and len(suite.failures) < steps.CULPRITS and self.time_left() > 1:
            ended, text, silent = self.run_tests(suite.left, suite.name if not suite.failures else f"{suite.name}-after-{len(suite.failures)}")
            if not self.take(suite, ended, text, silent):
                break
        suite.seconds = time.monotonic() - start
        with self.lock:  # whoever stops this program finds what it has seen
            self.known[suite.name] = suite.as_json()
            write(self.of.folder, self.known)
            print(json.dumps({"name": f"suite.{suite.name}", "value": suite.status}), flush=True)
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
                how = (f"hung: nothing was heard of it for {self.of.hang_after:.0f} s" if silent else
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

    def look_closer(self, test):
        """Runs a test once more, alone: with launches that wait, then under the sanitizer."""
        environment = {"CUDA_LAUNCH_BLOCKING": "1"}
        ended, text, _ = self.run_tests([test], f"{test}-blocking", environment=environment.items())
        again = next((found for found in parse(text) if found.name == test), None)
        if again and again.status == "ok":
            return [f"{test} alone, with CUDA_LAUNCH_BLOCKING=1: passed"]
        lines = [f"{test} alone, with CUDA_LAUNCH_BLOCKING=1: failed"]
        lines += ["    " + line for line in both_ends(again.lines if again else text.splitlines(), 6, 6)]
        if shutil.which("compute-sanitizer") and not self.of.dry and self.time_left() > 5:
            # Each block of memory alone: else what lies beyond one is another's, and no error.
            _, text, _ = self.run_tests([test], f"{test}-sanitizer", before=["compute-sanitizer", "--tool", "memcheck"],
                                        environment={"SHERD_DEVICE_MEMORY": "separate"}.items())
            found = [line for line in text.splitlines() if line.startswith("=========")]
            lines += [f"{test} under compute-sanitizer:", *("    " + line for line in found[1:13])]
        return lines


def read(folder):
    try:
        return json.loads((folder / "suites.json").read_text())
    except OSError:
        return {}


def write(folder, known):
    part = folder / "suites.json.part"
    part.write_text(json.dumps(known, indent=1) + "\n")
    part.replace(folder / "suites.json")


def tell(headline, lines=()):
    print(f"---- suites\n{headline}", *lines, sep="\n", flush=True)


def run_suites(runner):
    chosen = [suite for suite in runner.find() if runner.known.get(suite.name, {}).get("status") not in DONE]
    with concurrent.futures.ThreadPoolExecutor(steps.PARALLEL_SUITES) as pool:  # in order; results of later ones wait for none
        done = list(pool.map(runner.run, chosen))
    lines = [line for suite in done for line in suite.report()]
    skipped = sum(suite.skipped for suite in done)
    said = f"{sum(suite.passed for suite in done)} tests of {len(done)} suites passed" + (f", {skipped} skipped" if skipped else "")
    failed = [failure for suite in done for failure in suite.failures]
    if failed:
        said += f"; {len(failed)} failures, first {failed[0][0]}: {failed[0][1]}"
    tell(said, lines)
    return 1 if lines else 0


def run_closer(runner):
    """A hang would only hang again."""
    tests = [failed["test"] for suite in runner.known.values() for failed in suite["failed"][:steps.CULPRITS]
             if not failed["what"].startswith("hung")]
    with concurrent.futures.ThreadPoolExecutor(steps.PARALLEL_SUITES) as pool:
        lines = [line for found in pool.map(lambda test: runner.look_closer(test) if runner.time_left() > 1 else [], tests)
                 for line in found]
    passed = sum(line.endswith("=1: passed") for line in lines)
    tell(f"{len(tests)} tests alone, {passed} of them passed" if tests else "no test failed", lines)
    return 1 if passed < len(tests) else 0


def main():
    process.stop_on_signals()
    of = call()
    runner = Runner(of, word("tests", of.dry))
    try:
        return run_closer(runner) if "--closer" in sys.argv[1:] else run_suites(runner)
    except OSError as error:
        tell(error)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""The runner of tools/gpu/check on steps that are made here: scripts that end well, fail, hang or die.

Usage: gpu_check_runner_test.py SOURCE
"""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import time
import unittest
from unittest import mock

SOURCE = pathlib.Path(sys.argv.pop(1))
sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "tools/gpu/check"))
import facts  # noqa: E402
import gpu_check  # noqa: E402
import report  # noqa: E402
import runner  # noqa: E402
import state  # noqa: E402
import steps  # noqa: E402
from host import Host  # noqa: E402

CARD = """echo '{"peer": "limit", "device": "NVIDIA H100 80GB HBM3"}'; echo '{"seconds": [0.5]}'"""
SCRIPTS = {"good": """echo '{"x": 3, "deep": {"y": "9.19"}}'""",
           "says_error": """echo '{"error": "no memory"}'""",
           "fails": "echo 'kernel: illegal address'; exit 3",
           "hangs": "echo begun; exec sleep 1000",
           "dies": "kill -KILL $$"}


def step(name, script, seconds=5, group="a", **more):
    return steps.Step(name, group, f"sh {{check}}/{script}.sh", seconds, **more)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.out = self.root / "out"
        for made in (self.out, self.root / "bundle/bin"):
            made.mkdir(parents=True)
        for name, text in {**SCRIPTS, "card": CARD}.items():
            self.script(name, text)
        self.state = state.State.begin(self.root / "state")
        for patch in (mock.patch("host.CHECK", self.root), mock.patch("host.packages", lambda python: ("", ""))):
            patch.start()
            self.addCleanup(patch.stop)

    def script(self, name, text):
        (self.root / f"{name}.sh").write_text(text + "\n")

    def run_call(self, table, call="first", seconds=60.0, groups=None, known=None):
        """The calls of a check on a table of steps; what it prints is of no interest here."""
        known = known or self.state
        known.calls.append({"call": call, "dry_run": False})
        with mock.patch.object(steps, "STEPS", table), mock.patch.object(steps, "GROUPS", groups or {"a": 60, "b": 60}), \
                contextlib.redirect_stdout(io.StringIO()):
            made = runner.Runner(Host(self.root / "bundle", known.folder), known, self.out, seconds)
            made.run(runner.plan(call, known))
            self.report = report.text(known, self.out)
        return {name: entry["status"] for name, entry in known.steps.items()}


class Steps(Case):
    def test_each_costs_itself_only(self):
        began = time.monotonic()
        found = self.run_call([step("card", "card", requests={"first": "copy 1 1"}), step("one that dies", "dies"),
                               step("one that hangs", "hangs", seconds=0.3), step("one that fails", "fails"),
                               step("one that lies", "good", judge=("one that lies.x <= 2",)),
                               step("one that errs", "says_error"), step("good", "good", judge=("good.x == 3", "good.deep.y has 9."))])
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(found, {"card": "ok", "one that dies": "failed", "one that hangs": "failed", "one that fails": "failed",
                                 "one that lies": "failed", "one that errs": "failed", "good": "ok"})
        why = {name: entry["why"] for name, entry in self.state.steps.items()}
        self.assertEqual(why["one that dies"], "killed by signal 9 (SIGKILL)")
        self.assertEqual(why["one that hangs"], "longer than 0 s")
        self.assertEqual(why["one that fails"], "kernel: illegal address")
        self.assertEqual(why["one that lies"], "one that lies.x is 3; wanted: one that lies.x <= 2")
        self.assertEqual(why["one that errs"], "no memory")
        self.assertEqual(self.state.card, "NVIDIA H100 80GB HBM3")
        self.assertEqual(facts.lookup(self.state.facts, "card.first.seconds"), 0.5)

    def test_a_step_without_what_it_needs_is_not_run(self):
        found = self.run_call([step("card", "fails"), step("kernel", "good", needs=("card",)), step("profile", "good", needs=("no-such-tool",))])
        self.assertEqual(found, {"card": "failed", "kernel": "not reached", "profile": "absent"})
        self.assertIn("profile: left out, no-such-tool is not on this host", self.report)

    def test_time_is_over_for_a_group_and_for_a_call(self):
        found = self.run_call([step("long", "hangs", seconds=0.3), step("cut", "hangs", seconds=60, group="c"), step("late", "good"),
                               step("other", "good", group="b")], groups={"a": 0.2, "b": 5, "c": 0.2})
        self.assertEqual(found, {"long": "failed", "cut": "not reached", "late": "not reached", "other": "ok"})
        self.assertEqual(set(self.run_call([step("long", "good"), step("late", "good")], seconds=0).values()) - {"ok"}, {"not reached"})

    def test_what_runs_beside_the_others_is_waited_for(self):
        self.script("slow", "read word; sleep 0.3; test $word = stay || exit 4; echo '{\"y\": 7}'")
        table = [step("beside", "slow", background=True, requests={"whole": "go"}), step("good", "good"),
                 step("then", "good", seconds=50, group="b", after="beside")]
        self.assertEqual(self.run_call(table), {"good": "ok", "beside": "failed", "then": "ok"})
        self.assertEqual(self.state.steps["beside"]["why"], "status 4")  # its own end
        self.script("slow", "exit 0")
        self.assertEqual(self.run_call(table, "again")["beside"], "failed")  # nobody waits for it any more: it does not run


    def test_what_has_said_all_beside_the_others_is_not_waited_for(self):
        self.script("slow", "echo '{\"y\": 7}'; exec sleep 1000")
        began = time.monotonic()
        table = [step("beside", "slow", background=True, judge=("beside.y == 7",)), step("then", "good", seconds=50, after="beside")]
        self.assertEqual(self.run_call(table), {"beside": "ok", "then": "ok"})
        self.assertLess(time.monotonic() - began, 15)


class Again(Case):
    TABLE = [step("card", "card", always=True), step("good", "good"), step("bad", "fails"), step("late", "good", needs=("bad",)),
             step("follower", "good", after="bad")]

    def test_what_failed_runs_first_then_what_was_not_reached_on_another_machine(self):
        self.assertEqual(self.run_call(self.TABLE), {"card": "ok", "good": "ok", "bad": "failed", "late": "not reached", "follower": "ok"})
        elsewhere = self.root / "elsewhere"
        state.unpack(self.out / state.ARCHIVE, elsewhere)
        known = state.State.load(elsewhere)
        self.assertEqual((elsewhere / "logs/bad.log").read_text(), "kernel: illegal address\n")
        with mock.patch.object(steps, "STEPS", self.TABLE):
            self.assertEqual([chosen.name for chosen in runner.plan("again", known)], ["card", "bad", "follower", "late"])
        self.script("fails", "exit 0")
        self.script("good", "exit 1")  # what was ok is not asked again
        found = self.run_call(self.TABLE, "again", known=known)
        self.assertEqual(found, {"card": "ok", "good": "ok", "bad": "ok", "late": "failed", "follower": "failed"})
        self.assertEqual(facts.lookup(known.facts, "good.x"), 3)

    def test_only_what_is_named_runs(self):
        with mock.patch.object(steps, "STEPS", self.TABLE):
            self.assertEqual([chosen.name for chosen in runner.plan("first", self.state, ["bad"])], ["card", "bad"])


class Program(Case):
    def main(self, *words):
        said = io.StringIO()
        with mock.patch.object(sys, "argv", ["gpu_check.py", *map(str, words)]), contextlib.redirect_stderr(said), \
                mock.patch("gpu_check.find_bundle", lambda: self.root / "bundle"), contextlib.redirect_stdout(io.StringIO()):
            try:
                return gpu_check.main(), said.getvalue()
            except SystemExit as ended:
                return ended.code, said.getvalue()

    def test_wrong_calls_name_what_is_wrong(self):
        for words, parts in [(["smoke"], ["smoke", "first", "again"]), (["first", "--only", "suits"], ["--only suits", "suites"]),
                             (["first", "--from", "x.tar.xz"], ["--from x.tar.xz", "again"]),
                             (["again", "--state", self.root / "none"], [str(self.root / "none"), "results.tar.xz", "--from"]),
                             (["again", "--from", "missing.xz"], ["missing.xz"]), (["run"], ["run needs a command"]),
                             (["run", "no-such-program"], ["no-such-program"]),
                             (["first", "--dry-run", "nowhere"], ["--dry-run nowhere", "test_cuda"]),
                             (["first", "--seconds", "x"], ["--seconds", "'x'"])]:
            status, said = self.main(*words)
            self.assertEqual(status, 2, words)
            for part in parts:
                self.assertIn(part, said.splitlines()[-1])

    def test_results_of_a_dry_run_are_not_taken_for_a_card(self):
        self.state.calls.append({"call": "first", "dry_run": True})
        self.state.save(self.out)
        status, said = self.main("again", "--from", self.out / state.ARCHIVE, "--state", self.root / "new")
        self.assertEqual(status, 2)
        self.assertIn("a dry run", said)


if __name__ == "__main__":
    unittest.main()

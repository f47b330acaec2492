"""Stages of .ci/stage.sh have their commands' status, and fail the run by name when they are over their budgets.

Runs are scripts of a few stages on a clock of their own; the reference's seconds are given. Oracle: arithmetic.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CI = pathlib.Path(__file__).resolve().parents[2] / ".ci"
ROWS = """[ci]
reference = 2.0
cores = {cores}
network = ["setup"]
[ci.seconds]
quick = 10
slow = 100
[ci.fixed]
slow = 60
"""
SCRIPT = """set -euo pipefail
source .ci/stage.sh
ci_clock() {{ cat clock; }}
takes() {{ echo $(($(cat clock) + $1 * 100)) >clock; }}
torn() {{ takes 1; (exit 3); takes 90; }}
ci_reference="{reference}"
{stages}
"""


class Stages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("stage.sh", "stages.py"):
            (self.root / ".ci").mkdir(exist_ok=True)
            shutil.copy(CI / name, self.root / ".ci" / name)
        (self.root / "tools").mkdir()
        self.write_rows()

    def write_rows(self, text=ROWS, cores=1):
        (self.root / "tools" / "weight.toml").write_text(text.format(cores=cores), encoding="utf-8")

    def run_stages(self, *stages, reference="4.0 9.0 3.0"):
        """Returns the status and the text of a run, and what it wrote."""
        (self.root / "clock").write_text("1000\n", encoding="utf-8")
        script = SCRIPT.format(reference=reference, stages="\n".join(stages))
        run = subprocess.run(["bash", "-c", script], cwd=self.root, capture_output=True, text=True, check=False)
        return run.returncode, run.stdout + run.stderr, json.loads((self.root / "build/ci_stages.json").read_text())

    def test_stages_within_their_budgets(self):
        # Twice as slow as the reference's 2 s: 20 s, and 60 + 40 * 2.
        status, text, record = self.run_stages("stage setup takes 500", "stage quick takes 24", "stage slow takes 70")
        self.assertEqual(status, 0, text)
        self.assertIn("ci: stage quick took 24.0 s (the reference: 4.0 9.0 3.0)", text)
        self.assertRegex(text, r"quick +24\.0 +20\.0 +1\.20\n")
        self.assertRegex(text, r"setup +500\.0 not judged: it waits for the network")
        self.assertIn("ci: passed in", text)
        self.assertEqual(record["reference"], {"seconds": [4.0, 9.0, 3.0], "zen5_seconds": 2.0, "ratio": 2.0})
        self.assertEqual(record["stages"][2], {"name": "slow", "seconds": 70.0, "zen5_budget": 100, "budget": 140.0,
                                               "share": 0.5, "over": False})

    def test_a_stage_over_its_budget_fails_by_name_after_the_last(self):
        status, text, record = self.run_stages("stage quick takes 25", "stage slow takes 1")
        self.assertEqual(status, 1, text)
        self.assertIn("ci: stage quick took 25 s, more than 1.2 of its 20 s; tools/weight.toml says who may raise", text)
        self.assertNotIn("passed", text)
        self.assertNotIn("ci: stage slow took 1 s, more", text)
        self.assertEqual([(stage["name"], stage["over"]) for stage in record["stages"]], [("quick", True), ("slow", False)])
        self.assertEqual(self.run_stages("stage quick takes 13", reference="2.0 2.0 2.0")[0], 1)
        self.assertEqual(self.run_stages("stage quick takes 12", "stage quick takes 13")[0], 1)  # one stage, in two parts

    def test_a_command_that_fails_ends_the_run_with_its_status(self):
        status, text, record = self.run_stages("stage quick torn", "stage slow takes 1")
        self.assertEqual(status, 3, text)
        self.assertIn("ci: stage quick failed with status 3", text)
        self.assertIn("ci: not run: slow", text)
        self.assertEqual((record["status"], record["failed"]), (3, "quick"))
        self.assertEqual([(stage["name"], stage["seconds"]) for stage in record["stages"]], [("quick", 1.0)])
        self.assertEqual(self.run_stages("stage quick exit 5")[0], 5)
        self.assertEqual(self.run_stages("stage quick takes 99", "false")[0], 1)
        status, text, record = self.run_stages("stage quick kill -TERM $$")
        self.assertEqual((status, record["failed"], record["status"]), (-15, "quick", 130), text)

    def test_a_stage_that_may_fail(self):
        status, text, _ = self.run_stages("if ! A=7 stage quick bash -c 'exit $A'; then stage slow takes 1; fi")
        self.assertEqual(status, 0, text)
        self.assertIn("ci: stage slow took 1.0 s", text)

    def test_what_is_not_judged(self):
        self.write_rows(cores=4096)
        status, text, _ = self.run_stages("stage quick takes 99")
        self.assertEqual(status, 0, text)
        self.assertIn("no stage is judged: budgets are of 4096 cores", text)
        self.write_rows()
        status, text, _ = self.run_stages("stage quick takes 99", reference="")
        self.assertEqual(status, 0, text)
        self.assertIn("no stage is judged: the reference was not measured", text)

    def test_a_stage_without_a_row(self):
        status, text, _ = self.run_stages("stage other takes 1")
        self.assertEqual(status, 1)
        self.assertIn("ci: stage other has no row in [ci.seconds]", text)

    def measure(self, source):
        (self.root / ".ci" / "reference.cpp").write_text(source, encoding="utf-8")
        return subprocess.run([sys.executable, self.root / ".ci/stages.py", "reference"], capture_output=True, text=True,
                              check=False)

    @unittest.skipUnless(shutil.which("g++"), "there is no g++")
    def test_the_reference_is_compiled_three_times(self):
        run = self.measure("int x;\n")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(len([float(text) for text in run.stdout.split()]), 3)
        run = self.measure("int x\n")
        self.assertEqual(run.returncode, 1)
        self.assertIn("ci: the reference does not compile", run.stderr)

    def test_bad_rows_are_found_before_anything_runs(self):
        for text, breach in (("[ci]\n", "reference is None; it is a number of seconds above 0"),
                             ("[ci]\nreference = 1.0\n[ci.seconds]\nquick = 'x'\n", "quick is 'x'"), ("", "has no budgets")):
            self.write_rows(text)
            run = self.measure("int x;\n")
            self.assertEqual((run.returncode, run.stdout), (1, ""))
            self.assertIn(breach, run.stderr)


if __name__ == "__main__":
    unittest.main()

"""The parts of tools/gpu/check: what is read from logs and profiles, how little is printed of much, what the tables promise.

Usage: gpu_check_parts_test.py SOURCE
"""
import pathlib
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1))
sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "tools/gpu/check"))
import facts  # noqa: E402
import report  # noqa: E402
import state  # noqa: E402
import steps  # noqa: E402
import suites  # noqa: E402
import timeline  # noqa: E402
from process import Ended  # noqa: E402

LOG = """Note: Google Test filter = A.*
[==========] Running 4 tests from 1 test suite.
[ RUN      ] A.Passes
[       OK ] A.Passes (3 ms)
[ RUN      ] A.Skips
a.cpp:3: Skipped
[  SKIPPED ] A.Skips (0 ms)
[ RUN      ] A.Fails/2
a.cpp:9: Failure
Value of: x
[  FAILED  ] A.Fails/2, where GetParam() = "add, f32" (12 ms)
[ RUN      ] A.Hangs
queued
"""
LISTING = """Running main() from gtest_main.cc
A.
  Passes
  Fails/0  # GetParam() = 1
Row/B.
  X/add  # GetParam() = "add"
"""
LONG = '''==PROF== Connected to process 7
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","void sherd::cuda::(anonymous namespace)::norm_kernel<float, (int)2>(const float *, long)","gpu__time_duration.sum","us","1,250.5"
"1","nvjet_tst_256x128","gpu__time_duration.sum","ns","500"
'''
WIDE = '''"ID","Kernel Name","Grid Size","gpu__time_duration.sum"
"","","","us"
"0","nvjet_tst_256x128","(1, 1, 1)","2"
"1","void vector_pointwise<Swiglu>(int)","(1, 1, 1)","6"
'''


class Logs(unittest.TestCase):
    def test_each_test_has_its_end_or_is_running(self):
        self.assertEqual([(t.name, t.status) for t in suites.parse(LOG)],
                         [("A.Passes", "ok"), ("A.Skips", "skipped"), ("A.Fails/2", "failed"), ("A.Hangs", "running")])
        self.assertEqual(suites.parse(LOG)[2].lines, ["a.cpp:9: Failure", "Value of: x"])

    def test_of_many_lines_both_ends_are_shown(self):
        lines = [str(i) for i in range(20)]
        self.assertEqual(suites.both_ends(lines, 2, 1), ["0", "1", "... 17 lines", "19"])
        self.assertEqual(suites.both_ends(["a", "", "b"], 1, 0), ["a", "b"])

    def test_suites_and_their_tests(self):
        self.assertEqual(suites.list_suites(LISTING), {"A": ["A.Passes", "A.Fails/0"], "Row/B": ["Row/B.X/add"]})


class FakeRunner(suites.Runner):
    """Judges logs that were not made here."""

    def __init__(self):
        self.of = type("Call", (), {"hang_after": 30})()


class Culprits(unittest.TestCase):
    def take(self, names, log, status, timed_out=False, silent=False):
        suite = suites.Suite("A", names)
        again = FakeRunner().take(suite, Ended(status, 1.0, timed_out), log, silent)
        return suite, again

    def test_a_hang_is_of_the_test_that_ran(self):
        suite, again = self.take(["A.Passes", "A.Skips", "A.Fails/2", "A.Hangs", "A.Later"], LOG, -15, True, True)
        self.assertEqual([test for test, _, _ in suite.failures], ["A.Fails/2", "A.Hangs"])
        self.assertIn("nothing was heard of it for 30 s", suite.failures[1][1])
        self.assertEqual((suite.left, again, suite.passed, suite.skipped), (["A.Later"], True, 1, 1))

    def test_a_crash_is_of_the_test_that_ran(self):
        suite, again = self.take(["A.Hangs", "A.Later"], "[ RUN      ] A.Hangs\n", -11)
        self.assertEqual(suite.failures[0][:2], ("A.Hangs", "ended its process with status -11"))
        self.assertTrue(again)

    def test_what_follows_a_lost_device_is_asked_again(self):
        log = "[ RUN      ] A.X\nwaiting: cudaErrorIllegalAddress: text\n[  FAILED  ] A.X (1 ms)\n[ RUN      ] A.Y\n[  FAILED  ] A.Y (1 ms)\n"
        suite, again = self.take(["A.X", "A.Y"], log, 1)
        self.assertEqual([f[:2] for f in suite.failures], [("A.X", "lost the device: cudaErrorIllegalAddress")])
        self.assertEqual((suite.left, again), (["A.Y"], True))

    def test_an_ordinary_failure_is_not(self):
        suite, again = self.take(["A.X", "A.Y"], "[ RUN      ] A.X\n[  FAILED  ] A.X (1 ms)\n[ RUN      ] A.Y\n[       OK ] A.Y (1 ms)\n", 1)
        self.assertEqual(([f[0] for f in suite.failures], suite.passed, suite.left, again), (["A.X"], 1, [], False))

    def test_a_process_that_does_not_begin_is_a_failure(self):
        suite, again = self.take(["A.X"], "error while loading shared libraries: libcublasLt.so.13\n", 127)
        self.assertIn("before it began", suite.failures[0][1])
        self.assertFalse(again)

    def test_so_is_one_that_fails_at_its_end(self):
        suite, _ = self.take(["A.X"], "[ RUN      ] A.X\n[       OK ] A.X (1 ms)\n", -6)
        self.assertIn("every test passed, but", suite.failures[0][1])


class Timelines(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "t.csv")
            path.write_text(text)
            return timeline.read(path)

    def test_both_forms_of_the_table_in_microseconds(self):
        launches = self.read(LONG)
        self.assertEqual([us for _, us in launches], [1250.5, 0.5])
        self.assertEqual(self.read(WIDE), [("nvjet_tst_256x128", 2.0), ("void vector_pointwise<Swiglu>(int)", 6.0)])
        self.assertEqual(self.read("==ERROR== no kernels were profiled\n"), [])

    def test_kernels_by_what_they_are_for(self):
        self.assertEqual(dict(timeline.totals(self.read(WIDE), timeline.part_of)), {"swiglu": [1, 6.0], "product": [1, 2.0]})
        self.assertEqual(timeline.short(self.read(LONG)[0][0]), "norm_kernel<float, (int)2>")
        for kernel, part in [("flash_forward_kernel<128>", "attention"), ("convert_vectors<float, bf16>", "cast"),
                             ("norm_backward_kernel<bf16>", "norm"), ("loss_rows_kernel", "loss"), ("vector_pointwise<Add>", "add"),
                             ("step_kernel<AdamW>", "optimizer"), ("surprise", "other")]:
            self.assertEqual(timeline.part_of(kernel), part, kernel)

    def test_ops_are_printed_the_longest_first(self):
        head, first, _ = timeline.op_lines([["matmul", "bf16[4,8]", 2, 0.004], ["add", "", 1, 0.001]])
        self.assertEqual(head, "ops, each waited for: 3 calls, 5.00 ms")
        self.assertEqual(first.split(), ["4.000", "ms", "2", "x", "2000.0", "us", "matmul", "bf16[4,8]"])

    def test_the_predicted_step_is_the_sum_of_its_parts(self):
        """16 layers: 252 ms with what is not in the table (1.5 ms)."""
        rows = [row for row in report.read("predictions.json")["rows"] if "layer" in row]
        self.assertAlmostEqual(sum(report.predicted(row, layers=16) for row in rows), 250.5, delta=2)
        self.assertEqual({row["fact"] for row in rows} - {f"timeline.{part}" for part, _ in timeline.PARTS}, set())


class Report(unittest.TestCase):
    def line_of(self, fact, card="NVIDIA H200, 139 GiB", **entry):
        known = {fact: {"device": card, **entry}}
        what = next(row["what"] for row in report.read("predictions.json")["rows"] if row["fact"] == fact)
        return next(line for line in report.table(known, "NVIDIA H200") if line.startswith(what + " "))

    def test_ratios_count_on_any_card_beside_one_torch(self):
        for peer, ratio, wanted in [("torch 2.15.0", 1.07, " ok"), ("torch 2.15.0", 1.01, "MISSED 1.05x"),
                                    ("torch 2.11.0", 1.01, "not judged (1.05x of torch 2.15)")]:
            line = self.line_of("llama1b.step", "NVIDIA H100 80GB HBM3", value=60000.0, peer=peer, ratio=ratio)
            for part in ("60000 tokens/s", "predicted 65000", f"{ratio:.2f}x {peer}", wanted, "[H100 80GB HBM3]"):
                self.assertIn(part, line)

    def test_absolute_targets_count_on_one_card(self):
        self.assertIn("MISSED >= 65000", self.line_of("llama1b.step", value=64000.0))
        self.assertNotIn("MISSED", self.line_of("llama1b.step", "NVIDIA H100 80GB HBM3", value=64000.0))
        self.assertIn("not judged (1.05x of torch 2.15), ok", self.line_of("llama1b.step", value=65500.0, ratio=1.0, peer="torch 2.11.0"))
        self.assertNotIn("[", self.line_of("llama1b.step", value=64000.0))

    def test_a_limit_of_the_same_run_counts_on_any_card(self):
        self.assertIn("MISSED 1.031x of the limit", self.line_of("gpu.gemm.square", "NVIDIA H100", value=1600.0, limit=1500.0))
        self.assertIn("limit 1500", self.line_of("gpu.gemm.square", "NVIDIA H100", value=1501.0, limit=1500.0))

    def test_seconds_become_rates(self):
        self.assertIn("4 TB/s", self.line_of("limits.copy.seconds", value=0.0005))

    def test_questions_have_an_answer_or_were_not_reached(self):
        lines = report.questions({"step.graph": {"value": "ok"}, "faults.seconds": {"value": 3.5}, "suite.StagedGroups": {"value": "ok"}})
        answer = lambda words: next(line.split("  ")[0] for line in lines if words in line)
        self.assertEqual((answer("Can a recording"), answer("a million bad ids"), answer("several ranks"), answer("NCCL")),
                         ("yes", "NO", "not reached", "not reached"))

    def test_it_fits_whatever_was_found(self):
        known = state.State(pathlib.Path("/folder"))
        known.card = "NVIDIA H200"
        for number, step in enumerate(steps.STEPS):
            known.record(step.name, status="failed", seconds=1.0, why="w" * 1000, lines=[f"line {number} " + "x" * 400] * 200)
        for row in report.read("predictions.json")["rows"]:
            known.facts[row["fact"]] = {"value": 1e9 / 3, "note": "n" * 500, "peer": "torch 2.11.0", "ratio": 1.0, "device": "NVIDIA H100"}
        text = report.text(known, "/out")
        self.assertLessEqual(len(text), report.LIMIT)
        self.assertGreater(len(text), report.LIMIT * 0.85)
        for number, step in enumerate(steps.STEPS):
            self.assertTrue(f"FAILED {step.name}," in text and f"logs/{step.name.replace(' ', '-')}.log" in text, step.name)
        for row in report.read("questions.json"):
            self.assertTrue(row["question"] in text, row)


class Tables(unittest.TestCase):
    def test_groups_fit_into_the_first_call(self):
        self.assertLessEqual(sum(steps.GROUPS.values()), steps.CALLS["first"])
        for step in steps.STEPS:
            self.assertTrue(step.background or step.seconds <= steps.GROUPS[step.group], step.name)

    def test_the_readme_has_the_groups(self):
        text = (SOURCE / "tools/gpu/README.md").read_text()
        for group, seconds in steps.GROUPS.items():
            self.assertIn(f"\n| {group} | {seconds} s |", text)

    def test_steps_need_what_comes_before_them(self):
        seen = []
        for step in steps.STEPS:
            self.assertNotIn(step.name, seen)
            for need in step.needs:
                self.assertTrue(need in seen or need in ("torch", "compute-sanitizer"), (step.name, need))
            self.assertTrue(step.after is None or step.after in seen, step.name)
            seen.append(step.name)
            for condition in step.judge:
                facts.parse(condition)

    def test_suites_are_those_of_the_tests(self):
        text = "".join(path.read_text() for path in (SOURCE / "tests/cuda").glob("*_test.cpp"))
        for name in steps.SUITES + steps.DRY_SUITES:
            self.assertRegex(text, rf"\b{name.split('/')[-1]}\b", name)

    def test_facts_that_are_asked_for_are_printed_by_someone(self):
        """Each name begins with a step's, a suite's or a figure's, and its last part stands in what prints it."""
        names = [row["fact"] for row in report.read("predictions.json")["rows"]]
        names += [facts.parse(condition)[0] for row in report.read("questions.json") for condition in row.get("yes_if", [])]
        names += [facts.parse(condition)[0] for step in steps.STEPS for condition in step.judge]
        known = {step.name for step in steps.STEPS}
        sources = "".join(path.read_text() for folder in ("tools/bench", "tools/gpu/check", "runtime/cuda", "tests/cuda")
                          for path in (SOURCE / folder).glob("*.*") if path.suffix in (".cpp", ".py"))
        for name in names:
            first, _, rest = name.partition(".")
            if first == "step":
                self.assertIn(rest, known)
            elif first == "suite":
                self.assertIn(rest, steps.SUITES)
            else:
                self.assertIn(first, known | {"gpu"}, name)
                self.assertIn(rest.split(".")[-1], sources, name)


if __name__ == "__main__":
    unittest.main()

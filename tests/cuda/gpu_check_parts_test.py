"""The parts of tools/gpu/check: what is read from logs and profiles, how little is printed of much, what the plan promises.

Usage: gpu_check_parts_test.py SOURCE
"""
import pathlib
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1))
sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "tools/gpu/check"))
import report  # noqa: E402
import results  # noqa: E402
import stages  # noqa: E402
import suites  # noqa: E402
import timeline  # noqa: E402
from host import Ended, result  # noqa: E402

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
        self.host = type("Host", (), {"hang_after": 30})()


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
        self.assertAlmostEqual(sum(timeline.predicted_ms(part, 16) for part in results.predictions()["parts"]), 250.5, delta=2)


class Report(unittest.TestCase):
    def test_much_is_clipped_and_says_where_the_rest_is(self):
        lines = report.clipped(["x" * 1000] * 50, 2000, "a.log")
        self.assertLess(sum(len(line) + 1 for line in lines), 2100)
        self.assertEqual(lines[-1], "... 46 more lines in a.log")

    def test_a_figure_says_device_prediction_peer_and_limit(self):
        line, source = results.table([{"name": "gpu.add", "value": 60.0, "unit": "us", "limit": 50.0, "peer": "torch", "ratio": 1.5,
                                       "pass": False, "device": "NVIDIA H200, 139 GiB", "note": "x"}])
        for part in ("gpu.add", "60 us", "predicted 53", "limit 50", "1.50x torch", "MISSED", "[H200]"):
            self.assertIn(part, line)
        self.assertIn("not measured", source)


class Plan(unittest.TestCase):
    def test_calls_fit_into_the_time_a_card_is_lent(self):
        self.assertLessEqual(sum(stages.STAGES[name].seconds for name in stages.PLAN), stages.PLAN_SECONDS)
        for name, stage in stages.STAGES.items():
            self.assertLessEqual(stage.seconds, stages.CALL_SECONDS, name)
            self.assertLessEqual(sum(step.seconds for step in stage.steps), stage.seconds, name)

    def test_the_readme_has_the_table(self):
        self.assertIn(stages.plan_text(), (SOURCE / "tools/gpu/README.md").read_text())

    def test_suites_are_those_of_the_tests(self):
        text = "".join(path.read_text() for path in (SOURCE / "tests/cuda").glob("*_test.cpp"))
        for name in stages.SUITES + stages.DRY_SUITES:
            self.assertRegex(text, rf"\b{name.split('/')[-1]}\b", name)

    def test_predicted_figures_exist(self):
        text = (SOURCE / "tools/bench/gpu.cpp").read_text() + (SOURCE / "tools/bench/gpu_ops.cpp").read_text()
        for name in results.predictions()["figures"]:
            self.assertIn(f'"{name.split(".", 2)[-1] if name.startswith("gpu.gemm.") else name if "step" in name else name[4:]}"',
                          text + '"copy"')


if __name__ == "__main__":
    unittest.main()

"""What tools/f_table.py takes for a test of a behaviour, and each fault of the table that it finds."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
import f_table  # noqa: E402

NAMES = [
    "FullyShard.F1_Shards",
    "FullyShard.F1_ShardsWithProcesses",
    "Groups/Lanes.F2_F3_Wait/threads  # GetParam() = 7-byte object <F4_>",
    "Groups/Lanes.F2_F3_Wait/processes",
    "emulated.Staged.F4_Waits",
    "device.Staged.F4_Waits",
    "python.F5_exports",
    "FullyShard.WithoutANumber",
    "Golden.BufferF6_IsNoNumber",
]
GOOD = """# Title
| | behaviour | note | tests |
|---|---|---|---|
| F1 | one |  | `FullyShard.F1_Shards` `FullyShard.F1_ShardsWithProcesses` |
| F2 | two | differs by design: better | `Lanes.F2_F3_Wait` |
| F3 | three | partly: the rest is not built yet | `Lanes.F2_F3_Wait` |
| F4 | four |  | `emulated.Staged.F4_Waits` |
| F5 | five |  | `python.F5_exports` |
| F6 | six | not built yet: the sixth |  |
| F7 | seven | there is no seventh |  |
"""


class FTable(unittest.TestCase):
    def setUp(self):
        self.last, f_table.LAST = f_table.LAST, 7

    def tearDown(self):
        f_table.LAST = self.last

    def expect(self, fault, text=GOOD, names=NAMES, complete=False):
        wrong, _ = f_table.check(text, names, complete)
        self.assertEqual(len(wrong), 1, wrong)
        self.assertIn(fault, wrong[0])

    def test_a_good_table_passes_and_is_counted(self):
        wrong, counts = f_table.check(GOOD, NAMES)
        self.assertEqual(wrong, [])
        self.assertEqual(counts, '5 of 7 behaviours have tests; 2 say "not built yet", 1 of them of a part')

    def test_the_column_is_filled_in(self):
        empty = "".join(line.rsplit("|", 2)[0] + "|  |\n" if line.startswith("| F") else line + "\n"
                        for line in GOOD.splitlines())
        self.assertNotEqual(empty, GOOD)
        self.assertEqual(f_table.filled(empty, f_table.tests_by_number(NAMES)), GOOD)

    def test_a_test_that_is_gone(self):
        self.expect("F5 names python.F5_exports, which ctest does not know", names=NAMES[:6] + ["Other.F5_Exports"],
                    text=GOOD.replace("`python.F5_exports`", "`Other.F5_Exports` `python.F5_exports`"))

    def test_a_disabled_test_is_none(self):
        tests = [{"name": name, "properties": [{"name": "TIMEOUT", "value": 300}]} for name in NAMES[:-1]]
        tests[0]["properties"].append({"name": "DISABLED", "value": True})
        tests[1]["properties"].append({"name": "DISABLED", "value": False})
        names = f_table.names_that_run([*tests, {"name": NAMES[-1]}])
        self.assertEqual(names, NAMES[1:])
        self.expect("F1 names FullyShard.F1_Shards, which ctest does not know", names=names)

    def test_a_test_that_is_new(self):
        self.expect("F4 lacks Other.F4_New", names=NAMES + ["Other.F4_New"])

    def test_a_test_of_no_row(self):
        self.expect("Other.F8_New is of F8", names=NAMES + ["Other.F8_New"])

    def test_neither_test_nor_note(self):
        self.expect("F7 has neither", text=GOOD.replace("there is no seventh", ""))

    def test_a_note_that_tests_have_overtaken(self):
        self.expect('F6 has tests and the note "not built yet: the sixth"', names=NAMES + ["Other.F6_New"],
                    text=GOOD.replace("the sixth |  |", "the sixth | `Other.F6_New` |"))

    def test_a_part_without_a_test(self):
        self.expect("F6 is tested partly", text=GOOD.replace("not built yet: the sixth", "partly: the sixth"))

    def test_rows_that_are_missing_or_broken(self):
        self.expect("F6 follows F4", text=GOOD.replace("| F5 | five |  | `python.F5_exports` |\n", ""),
                    names=[name for name in NAMES if "F5" not in name])
        self.expect("ends with F6", text=GOOD.replace("| F7 | seven | there is no seventh |  |\n", ""))

    def test_the_order_of_names(self):
        self.expect("another order", text=GOOD.replace("`FullyShard.F1_Shards` `FullyShard.F1_ShardsWithProcesses`",
                                                       "`FullyShard.F1_ShardsWithProcesses` `FullyShard.F1_Shards`"))

    def test_complete_means_nothing_is_left_to_build(self):
        wrong, _ = f_table.check(GOOD, NAMES, complete=True)
        self.assertEqual(wrong, ["F3: partly: the rest is not built yet", "F6: not built yet: the sixth"])

    def test_a_build_without_cuda_knows_no_tests_of_devices(self):
        self.assertEqual(f_table.check(GOOD, [name for name in NAMES if "Staged" not in name])[0], [])


unittest.main()

"""built_library.py finds what it should: reports and libraries with one fault each."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import built_library  # noqa: E402

GOOD = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5scale' for 'sm_90a'
ptxas info    : Function properties for _Z5scale
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 26 registers, used 1 barriers
"""


class Reports(unittest.TestCase):
    def faults(self, text):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "k.ptxas"
            report.write_text(text)
            return built_library.kernel_faults(report)

    def test_a_good_kernel(self):
        self.assertEqual(self.faults(GOOD), [1])

    def test_spills(self):
        count, fault = self.faults(GOOD.replace("0 bytes spill loads", "8 bytes spill loads"))
        self.assertIn("_Z5scale for sm_90a: spills, 0 bytes stored, 8 bytes loaded", fault)

    def test_registers(self):
        count, fault = self.faults(GOOD.replace("26 registers", "200 registers"))
        self.assertIn("200 registers, the limit is 128", fault)

    def test_registers_of_large_blocks(self):
        for name, most in (("flash_forward", 248), ("power_total", 64)):
            good = GOOD.replace("5scale", name).replace("26 registers", f"{most} registers")
            self.assertEqual(self.faults(good), [1])
            count, fault = self.faults(good.replace(f"{most} registers", f"{most + 1} registers"))
            self.assertIn(f"{most + 1} registers, the limit is {most}", fault)

    def test_static_shared_memory(self):
        count, fault = self.faults(GOOD.replace("1 barriers", "1 barriers, 128 bytes smem"))
        self.assertIn("128 bytes of static shared memory", fault)

    def test_no_kernel(self):
        self.assertEqual(self.faults(""), [0])


class Libraries(unittest.TestCase):
    def test_an_export_that_is_not_ours(self):
        library = next(pathlib.Path("/lib/x86_64-linux-gnu").glob("libz.so*"), None)
        if library is None:
            self.skipTest("no libz here")
        self.assertIn("exports", " ".join(built_library.library_faults(str(library))))


if __name__ == "__main__":
    unittest.main()

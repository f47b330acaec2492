"""tools/check_includes.py finds a header that uses what it does not include, and accepts what another header brings."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_includes.py"


class CheckIncludes(unittest.TestCase):
    def run_on(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            run = subprocess.run([sys.executable, CHECKER, folder], capture_output=True, text=True, check=False)
            return run.returncode, run.stdout.splitlines()

    def test_a_missing_include_is_named(self):
        status, lines = self.run_on({"nn/a.h": "#pragma once\nstd::vector<int> list();\n"})
        self.assertEqual(status, 1)
        self.assertIn("nn/a.h: std::vector needs #include <vector>", lines)

    def test_other_headers_bring_it(self):
        status, _ = self.run_on({"nn/a.h": '#include "nn/b.h"\nstd::vector<int> list();\n',
                                 "nn/b.h": '#include "nn/c.h"\n', "nn/c.h": "#include <vector>\n"})
        self.assertEqual(status, 0)

    def test_comments_and_texts_use_nothing(self):
        status, _ = self.run_on({"nn/a.h": '// std::vector\nconst char* text = "std::string";\n'})
        self.assertEqual(status, 0)


if __name__ == "__main__":
    unittest.main()

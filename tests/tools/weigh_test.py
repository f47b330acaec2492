"""tools/weigh.py counts what tools/weight.toml says, finds folders over their rows, and commits that raise a row aside.

Oracles: counts made by hand, and repositories of a few commits.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import weigh  # noqa: E402
from count_code import Weight, public_types, weigh_file, weigh_tree  # noqa: E402
from cxx_code import code_of  # noqa: E402

HEADER = r'''
// one; two {
#define THREE { ; }
namespace sherd {
struct A { int x = 10'000; };               // { ; ;
enum class B : int { b, c };                // { ;
template <class T>
class alignas(16) C final : public A {      // {
  enum D { d };                             // { ;
  char e = ';'; const char* f = "{;";       // ; ;
};                                          // ;
template <> struct C<int> {};               // { ;
struct G;                                   // ;
inline struct G g() { return {}; }          // { { ;
using H = A;                                // ;
namespace detail { struct I {}; }           // { { ;
namespace { union J {}; }                   // { { ;
}  // namespace sherd and its own {
auto k = R"(};)";                           // ;
'''


class Counts(unittest.TestCase):
    def weigh(self, name, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, name)
            path.write_text(text, encoding="utf-8")
            return weigh_file(path)

    def test_cxx(self):
        self.assertEqual(self.weigh("a.h", HEADER), Weight(26, 1, 3))
        self.assertEqual(self.weigh("a.cpp", HEADER), Weight(26, 1, 0))
        self.assertEqual(public_types(code_of('extern "C" { struct A {}; }\nnamespace x_detail { struct B {}; }')), 1)

    def test_python_and_scripts(self):
        text = '"""One; two."""\nimport os\n\ndef f(a):\n    """Text."""\n    return {a: ";"}\n'
        self.assertEqual(self.weigh("a.py", text), Weight(3, 1))
        self.assertEqual(self.weigh("CMakeLists.txt", "set(a ;)\n"), Weight(0, 1))

    def test_a_row_weighs_folders_without_one(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {"nn/a.h": "int a;", "nn/x/b.cpp": "{;", "nn/y/c.cpp": ";", "nn/y/z/d.cpp": ";;", "e/f.py": "1",
                               "nn/run": "#!/bin/sh\n", "nn/data": "int;", "nn/README.md": "", "CMakeLists.txt": "",
                               "build/g.cpp": ";", "nn/__pycache__/h.py": ""}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            weights, without = weigh_tree(root, {row: Weight() for row in (".", "nn", "nn/y")})
        self.assertEqual(weights, {".": Weight(0, 1), "nn": Weight(3, 3), "nn/y": Weight(3, 2)})
        self.assertEqual(without, ["e"])


class Tree(unittest.TestCase):
    """A folder with rows and code, in git where a test asks for it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.notes = []
        self.write({"tools/weight.toml": '[folders]\n"nn" = { statements = 4, files = 2, types = 1 }\n',
                    "nn/a.h": "struct A {};"})

    def write(self, files):
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text, encoding="utf-8")

    def rows(self, statements, more=""):
        return {"tools/weight.toml": f'[folders]\n"nn" = {{ statements = {statements}, files = 2, types = 1 }}\n{more}'}

    def breaches(self, base=None):
        return list(weigh.breaches(self.root, base, self.notes.append))

    def expect(self, *parts, base=None):
        found = self.breaches(base)
        self.assertEqual(len(found), 1, found)
        for part in parts:
            self.assertIn(part, found[0])

    def git(self, *arguments):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        identity = ["-c", "user.name=t", "-c", "user.email=t", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", "-C", self.root, *identity, *arguments], check=True, capture_output=True, env=environment)

    def commit(self, message, files):
        self.write(files)
        self.git("add", "-A")
        self.git("commit", "-q", "--no-verify", "-m", message)

    def start(self):
        self.git("init", "-q")
        self.commit("begin", {})


class Budgets(Tree):
    def test_a_tree_within_its_rows(self):
        self.assertEqual(self.breaches(), [])
        self.assertEqual(len(self.notes), 1)
        self.assertIn("no git history", self.notes[0])

    def test_over_a_row(self):
        remedy = "or raise the row in a commit that does nothing else and names the issue"
        self.write({"nn/x/b.cpp": "int b; int c; int d;"})
        self.expect("nn: 5 statements", "allows 4; take 1 out", remedy)
        self.write({"nn/x/b.cpp": "", "nn/c.py": ""})
        self.expect("nn: 3 files", "allows 2")
        self.write({"nn/a.h": "struct A {}; enum class B { b };"})
        (self.root / "nn/c.py").unlink()
        self.expect("nn: 2 public types", "allows 1")

    def test_rows_and_folders_match(self):
        self.write({"dtensor/a.cpp": ";"})
        self.expect("dtensor: has no row")
        self.write(self.rows(4, '"dtensor" = { statements = 1, files = 1, types = 0 }\n'))
        self.assertEqual(self.breaches(), [])
        (self.root / "dtensor/a.cpp").unlink()
        self.expect("the row dtensor has no folder")

    def test_bad_rows(self):
        for text, breach in (('[folders]\n"nn" = { files = 1 }\n', "row nn is {'files': 1}; it has statements, files, types"),
                             ('[folders]\n"nn" = { statements = -1, files = 1, types = 1 }\n', "each a count"),
                             ("[folders\n", "tools/weight.toml: ")):
            self.write({"tools/weight.toml": text})
            self.expect(breach)
        (self.root / "tools/weight.toml").unlink()
        self.expect("does not exist")

    def test_stages_of_ci_have_rows(self):
        run = "stage quick true\nif ! A=1 stage setup true; then\n# stage of\nfi\n"
        more = '[ci]\nnetwork = ["setup"]\n[ci.seconds]\nquick = 1\n'
        weighed = '".ci" = { statements = 0, files = 9, types = 0 }\n'
        self.write({".ci/run": "#!/bin/sh\n" + run, **self.rows(4, weighed + more)})
        self.assertEqual(self.breaches(), [])
        self.write({".ci/run": "#!/bin/sh\n" + run + "  stage slow true\n"})
        self.expect(".ci/run: the stage slow has no row")
        self.write({".ci/run": "#!/bin/sh\n" + run, **self.rows(4, weighed + more + "slow = 2\n")})
        self.expect(".ci/run has no stage slow; take its row out")

    def test_write_lowers_and_raises_only_when_asked(self):
        self.write({**self.rows(100), "nn/b.cpp": ";" * 98})
        run = [sys.executable, TOOLS / "weigh.py", self.root, "--write", "--room", "0"]
        self.assertEqual(subprocess.run(run, capture_output=True, check=False).returncode, 0)
        self.assertEqual(weigh.read_rows(self.root), {"nn": Weight(100, 2, 1)})
        self.write({"nn/b.cpp": ";" * 50})
        subprocess.run(run[:-2], capture_output=True, check=True)
        self.assertEqual(weigh.read_rows(self.root), {"nn": Weight(54, 2, 1)})
        self.write({"nn/b.cpp": ";" * 98})
        self.assertEqual(subprocess.run(run, capture_output=True, check=False).returncode, 1)
        self.assertEqual(weigh.read_rows(self.root), {"nn": Weight(54, 2, 1)})
        self.assertEqual(subprocess.run([*run, "--raise"], capture_output=True, check=False).returncode, 0)
        self.assertEqual(weigh.read_rows(self.root), {"nn": Weight(100, 2, 1)})


@unittest.skipUnless(shutil.which("git"), "there is no git")
class History(Tree):
    def test_ignored_files_weigh_nothing(self):
        self.write({".gitignore": "made/\n", "nn/made/b.cpp": ";" * 99})
        self.expect("nn: 101 statements")
        self.start()
        self.write({"build-2/c.cpp": ";"})  # a folder of somebody's own
        self.assertEqual(self.breaches(), [])
        self.write({"nn/x/c.cpp": ";;;;;"})
        self.expect("nn: 7 statements")
        self.git("add", "build-2")
        (self.root / "nn/x/c.cpp").unlink()
        self.expect("build-2: has no row")

    def test_a_row_rises_alone_and_names_the_issue(self):
        self.start()
        self.commit("nn: allow more, issue 31", self.rows(9))
        self.assertEqual(self.breaches(), [])
        self.commit("nn: add b, issue 31", {"nn/b.cpp": ";"})
        self.assertEqual(self.breaches("HEAD~2"), [])
        self.assertEqual(self.notes, [])

    def test_a_row_that_rises_beside_code(self):
        self.start()
        self.commit("nn: add b, issue 31", {**self.rows(9), "nn/b.cpp": ";"})
        self.expect("raises nn beside other changes (nn/b.cpp)", "a row of tools/weight.toml rises in a commit that does")
        self.commit("nn: say more", {"nn/b.cpp": ";;"})
        self.assertEqual(self.breaches(), [])  # of an earlier commit the range tells
        self.expect("raises nn beside", base="HEAD~2")

    def test_a_row_that_rises_without_an_issue(self):
        self.start()
        self.commit("nn: allow more", self.rows(9))
        self.expect("raises nn and names no issue")

    def test_a_row_falls_beside_code(self):
        self.start()
        self.commit("nn: add b", {**self.rows(3), "nn/b.cpp": ";"})
        self.assertEqual(self.breaches(), [])

    def test_a_new_folder_brings_its_row(self):
        row = '"op" = { statements = 9, files = 9, types = 9 }\n'
        self.start()
        self.commit("op: begin, #31", {**self.rows(4, row), "op/a.cpp": ";"})
        self.assertEqual(self.breaches(), [])
        self.commit("nn: begin x", {**self.rows(4, row + row.replace("op", "nn/x")), "nn/x/b.cpp": ""})
        self.expect("raises nn/x and names no issue")

    def test_a_new_row_that_another_pays_for(self):
        self.start()
        self.commit("nn: add x", {"nn/x/b.cpp": ";"})
        row = '"nn/x" = { statements = 1, files = 1, types = 0 }\n'
        self.commit("nn: weigh x by itself", {"tools/weight.toml":
                    f'[folders]\n"nn" = {{ statements = 3, files = 1, types = 1 }}\n{row}', "nn/x/b.cpp": "int b;"})
        self.assertEqual(self.breaches(), [])
        self.commit("nn: more for all, issue 31", {**self.rows(4, row), "nn/x/b.cpp": "int c;"})
        self.expect("raises nn beside other changes (nn/x/b.cpp)")

    def test_seconds_and_the_reference(self):
        ci = "[ci]\nreference = {}\n[ci.seconds]\nrelease = {}\n"
        self.start()
        for reference, release, breach in ((2.0, 100, None), (2.0, 90, None), (2.5, 90, None), (2.5, 91, "release"),
                                           (2.4, 91, "reference")):
            self.commit("ci: change", self.rows(4, ci.format(reference, release)) | {"nn/README.md": f"{reference} {release}"})
            if breach:
                self.expect(f"raises {breach} and names no issue")
        self.commit("ci: a quicker reference, issue 31", self.rows(4, ci.format(2.3, 91)) | {".ci/reference.cpp": "x"})
        self.expect(".ci: has no row")

    def test_rows_of_limits_rise_alike(self):
        self.start()
        for lines in (130, 129, 130):
            self.commit("nn: say more", {"tools/limits.toml": f'[readme]\n"nn/README.md" = {lines}\n', "nn/b.cpp": f"{lines};"})
            found = list(weigh.rises_in_history(self.root, "tools/limits.toml", None, self.notes.append))
        self.assertEqual(len(found), 1, found)
        self.assertIn("raises nn/README.md and names no issue", found[0])

    def test_a_merge_raises_nothing(self):
        self.start()
        self.git("checkout", "-q", "-b", "side")
        self.commit("nn: allow more, issue 31", self.rows(9))
        self.git("checkout", "-q", "main")
        self.commit("nn: add b", {"nn/b.cpp": ";"})
        self.git("merge", "-q", "--no-ff", "-m", "merge", "side")
        self.assertEqual(self.breaches("HEAD~1"), [])
        self.write(self.rows(12))
        self.git("commit", "-q", "-a", "--amend", "-m", "merge, issue 31")
        self.expect("a merge raises nn")

    def test_a_shallow_clone_says_what_it_leaves_out(self):
        self.start()
        self.commit("nn: allow more", self.rows(9))
        clone = self.root / "clone"
        self.git("clone", "-q", "--depth", "1", f"file://{self.root}", str(clone))
        self.root = clone
        self.assertEqual(self.breaches(), [])
        self.assertEqual(len(self.notes), 1)
        self.assertIn("shallow", self.notes[0])
        self.expect("--history HEAD~3: this repository has no such commit", base="HEAD~3")


if __name__ == "__main__":
    unittest.main()

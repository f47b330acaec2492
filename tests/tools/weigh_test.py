"""tools/count_code.py counts statements, files and types as counted by hand."""
import pathlib
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
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


if __name__ == "__main__":
    unittest.main()

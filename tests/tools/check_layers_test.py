"""Each rule of tools/check_layers.py finds a breach of it in a small tree, and nothing else."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_layers  # noqa: E402
import type_definitions  # noqa: E402

GOOD = {
    "runtime/README.md": "",
    "runtime/a.h": "#pragma once\n",
    "nn/README.md": "",
    "nn/b.cpp": '#include <vector>\n#include "runtime/a.h"\n',
    "tools/README.md": "",
    "tools/c.cpp": '#include "nn/d.h"\nconst char* home = std::getenv("HOME");\n',
    "nn/d.h": "// what\n#pragma once\n",
}


class CheckLayers(unittest.TestCase):
    def run_on(self, changes):
        """Writes GOOD with `changes` and returns the checker's status and lines."""
        files = {**GOOD, **changes}
        tops = {name.split("/")[0] for name in files if name.endswith((".h", ".cpp", ".cu", ".py"))}
        rows = "".join(f'"{top}" = {{ statements = 999, files = 99, types = 9 }}\n' for top in tops)
        files.setdefault("tools/weight.toml", "[folders]\n" + rows)
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                if text is not None:
                    path.write_text(text, encoding="utf-8")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                status = check_layers.main([folder])
            return status, printed.getvalue().splitlines()

    def expect(self, changes, breach):
        status, lines = self.run_on(changes)
        self.assertEqual(status, 1)
        self.assertEqual(len(lines), 2, lines)
        self.assertIn(breach, lines[0])

    def test_good_tree_passes(self):
        self.assertEqual(self.run_on({}), (0, ["check_layers: the tree keeps its rules"]))

    def test_golden_folders_need_no_readme(self):
        self.assertEqual(self.run_on({"tests/golden/README.md": "", "tests/golden/llama/config.json": "{}"})[0], 0)

    FACE = {
        "include/README.md": "",
        "include/sherd/README.md": "",
        "include/sherd/tensor.h": '#pragma once\n#include "runtime/a.h"\n',
        "runtime/b.h": "#pragma once\nnamespace sherd {\nstruct Told {};\nstruct Kept {};\nnamespace detail {\nstruct Own {};\n}\n}\n",
    }

    def test_public_types_are_those_listed(self):
        def header(declarations):
            return {"runtime/a.h": '#pragma once\n#include "runtime/b.h"\nnamespace sherd {\n' + declarations + "\n}\n"}

        hidden = {**self.FACE, **header("class Seen {\n  Kept a_;\n public:\n  int f() { return Kept{}, 1; }\n  Told g();\n};\n"
                                        "namespace detail {\nvoid of(Kept);\n}\nSeen make();")}
        self.assertEqual(self.run_on({**hidden, "tools/face.txt": "sherd::Seen\nsherd::Told\n"})[0], 0)
        self.expect({**hidden, "tools/face.txt": "sherd::Seen\n"}, "runtime/a.h: names sherd::Told, which is no public type yet")
        self.expect({**self.FACE, **header("Told make();"), "tools/face.txt": "sherd::Gone\nsherd::Told\n"},
                    "tools/face.txt: no header that programs include names sherd::Gone")
        inner = {**self.FACE, **header("namespace nn {\nstruct Told {};\nTold make();\n}")}
        self.assertEqual(self.run_on({**inner, "tools/face.txt": "sherd::nn::Told\n"})[0], 0)

    STATE = """#pragma once
namespace sherd::nn {
/// A list of them; with a comma.
class Told final : public ModuleHook {
 public:
  explicit Told(int size = 0) : size_{size}, list_() {}
  bool is_on() const { return on_; }
  Shape grow(Shape from = {}, int by = 1);

 private:
  struct Inner {
    int value = 0;
  };
  const int size_;
  std::vector<std::pair<int, int>> list_;
  std::function<void(int, int)> call_ = make([this] { return 1; }, 2);
  HostState<ToldState> state_{label, this};
  bool on_ = true, off_{false};  // NEW
};
}
"""

    def run_on_state(self, listed, code=STATE):
        table = "".join(f'["{name}"]\n"a reason" = {members}\n' for name, members in listed.items())
        return self.run_on({"nn/d.h": code, "tools/host_state.toml": table})

    def test_state_that_no_replay_sees(self):
        listed = {"sherd::nn::Told": ["list_", "call_", "on_", "off_"]}
        self.assertEqual(self.run_on_state(listed)[0], 0, self.run_on_state(listed)[1])
        seeded = self.STATE.replace("  // NEW", "\n  double scale_ = 1;")
        status, lines = self.run_on_state(listed, seeded)
        self.assertEqual((status, len(lines)), (1, 2), lines)
        self.assertIn("nn/d.h:4: sherd::nn::Told::scale_ may change between two calls of a captured step", lines[0])

    def test_state_that_is_listed_and_gone(self):
        listed = {"sherd::nn::Told": ["list_", "call_", "on_", "off_", "size_"], "sherd::Gone": ["x"]}
        status, lines = self.run_on_state(listed)
        self.assertEqual((status, len(lines)), (1, 3), lines)
        self.assertIn("lists sherd::nn::Told::size_, which is not there", lines[0])
        self.assertIn("there is no class sherd::Gone", lines[1])

    def test_include_upwards(self):
        self.expect({"runtime/a.h": '#pragma once\n#include "nn/d.h"\n'}, "runtime/a.h:2: \"nn/d.h\": runtime may not")

    def test_include_sideways(self):
        self.expect({"compile/README.md": "", "compile/e.h": '#pragma once\n#include "nn/d.h"\n'}, "compile may not")

    def test_include_of_a_missing_file(self):
        self.expect({"nn/b.cpp": '#include "runtime/zzz.h"\n'}, "does not exist")

    def test_include_without_folder(self):
        self.expect({"nn/b.cpp": '#include "d.h"\n'}, "does not start with a folder")

    def test_header_without_pragma(self):
        self.expect({"nn/d.h": "int x();\n"}, "nn/d.h:1: `#pragma once` stands 0 times")

    def test_long_file(self):
        self.expect({"nn/b.cpp": "\n" * 601}, "nn/b.cpp: 601 lines")

    def test_long_function(self):
        lines = ["  x();  // }", '  y("}");'] * 30
        body, short_body = "\n".join(lines), "\n".join(lines[2:])
        self.expect({"nn/b.cpp": f"namespace n {{\nstruct S {{\n  int z = {{}};\n}};\nvoid f() {{\n{body}\n}}\n}}\n"},
                    "nn/b.cpp:5: a function of 62 lines")
        for text in (f"void f() {{\n{short_body}\n}}\n" * 2, f"namespace n {{\n{body}\n}}\n", f"int x[] = {{\n{body}\n}};\n"):
            self.assertEqual(self.run_on({"nn/b.cpp": text})[0], 0)

    def test_digits_open_no_literal(self):
        body = "\n".join(["  x();"] * 60)
        self.expect({"nn/b.cpp": f"void f() {{\n  f(1'0, '}}');\n{body}\n}}\n"}, "nn/b.cpp:1: a function of 63 lines")

    def test_rooms_keep_their_order(self):
        rooms = {f"runtime/{room}/{name}": text for room in ("os", "op", "cpu", "cuda")
                 for name, text in (("README.md", ""), (f"{room}.h", "#pragma once\n"))}
        self.assertEqual(self.run_on({**rooms, "runtime/cpu/x.cpp": '#include "runtime/op/op.h"\n'})[0], 0)
        self.expect({**rooms, "runtime/os/x.cpp": '#include "runtime/op/op.h"\n'}, "the order in runtime/ is os < tensor")
        self.expect({**rooms, "runtime/cpu/x.cpp": '#include "runtime/cuda/cuda.h"\n'}, "< cpu | cuda")

    def test_files_of_a_folder_are_rooms_too(self):
        tree = {f"{folder}/README.md": "" for folder in ("dtensor", "dtensor/rules", "dtensor/transition", "nn/optim")}
        tree |= {f"dtensor/{name}.h": "#pragma once\n" for name in
                 ("placement", "spec", "layer", "propagate", "rules/r", "transition/t")}
        for place, target in (("dtensor/spec.cpp", "dtensor/transition/t.h"), ("dtensor/transition/t.cpp", "dtensor/layer.h"),
                              ("dtensor/layer.cpp", "dtensor/propagate.h"), ("dtensor/rules/r.h", "dtensor/propagate.h"),
                              ("nn/offload_activations.cpp", "nn/optim/o.h")):
            text = f'#pragma once\n#include "{target}"\n'
            self.assertEqual(self.run_on({**tree, "nn/optim/o.h": "#pragma once\n", place: text})[0], 0, (place, target))
        order = "the order in dtensor/ is modes < placement | recent | scopes < .+transition < rules"
        self.expect({**tree, "dtensor/spec.cpp": '#include "dtensor/rules/r.h"\n'}, order)
        self.expect({**tree, "dtensor/placement.h": '#pragma once\n#include "dtensor/spec.h"\n'}, order)
        self.expect({**tree, "dtensor/spec.h": '#pragma once\n#include "dtensor/propagate.h"\n'}, "| spec < api")
        self.expect({**tree, "nn/optim/o.h": "#pragma once\n", "nn/module.cpp": '#include "nn/optim/o.h"\n'},
                    "the order in nn/ is . < layers < optim")

    def limited(self, changes, rows, breach):
        """Expects no breach under `rows` of tools/limits.toml and, with each number one lower, the one named."""
        text = "".join(f'[{kind}]\n"{name}" = {{}}\n' for kind, name in rows)
        numbers = list(rows.values())
        self.assertEqual(self.run_on({**changes, "tools/limits.toml": text.format(*numbers)})[0], 0)
        self.expect({**changes, "tools/limits.toml": text.format(*[number - 1 for number in numbers])}, breach)
        self.expect(changes, breach)

    def test_types_of_many_declarations(self):
        def type_of(count):
            body = "  enum class Kind { a, b };\n  int f() const { return 1; }\n" + "  int x = f(), y{};\n" * (count - 2)
            return f"#pragma once\nnamespace n {{\nclass Big : public Small {{\n public:\n{body}}};\n}}\n"
        self.assertEqual(self.run_on({"nn/d.h": type_of(45)})[0], 0)
        self.limited({"nn/d.h": type_of(47)}, {("declarations", "n::Big"): 47}, "nn/d.h:3: n::Big has 47 declarations")
        self.expect({"nn/d.h": type_of(45), "tools/limits.toml": '[declarations]\n"n::Big" = 47\n'},
                    'tools/limits.toml: "n::Big" keeps the limit of 45 declarations')

    def test_readmes_are_short(self):
        self.assertEqual(self.run_on({"nn/README.md": "x" * 120 * 120})[0], 0)
        for text in ("\n" * 121, "x" * (120 * 120 + 1), "x" * 121 + "\ny" * 119):
            self.limited({"nn/README.md": text}, {("readme", "nn/README.md"): 121}, "nn/README.md has 121 lines")
        self.expect({"tools/limits.toml": '[readme]\n"nn/README.md" = 121\n'}, '"nn/README.md" keeps the limit of 120 lines')

    def test_comments_begin_with_their_subject(self):
        for text in ("// Of it.", "int x;  // That of x.", "/// Those\n/// that are.", "//Who"):
            self.limited({"nn/b.cpp": f"\n{text}\n"}, {("comments", "Of, Those, Who, That"): 1}, "nn/b.cpp:2: a comment begins with")
        self.assertEqual(self.run_on({"nn/b.cpp": "// Office of those who do that.\n"})[0], 0)

    def test_missing_readme(self):
        self.expect({"nn/README.md": None}, "nn: has no README.md")

    def test_not_ascii(self):
        self.expect({"nn/b.cpp": "// \u00e9\n"}, "nn/b.cpp:1: not ASCII")

    def test_ops_compared_by_name(self):
        breach = "nn/b.cpp:2: an op is compared by name"
        for text in ('call.op.name == "add"', "node.op->name != other", 'name ==\n  node.at(i).op->name', 'last_op().name=="add"',
                     "row->name == name", 'op.name.starts_with("unit_")', 'this_op_.name == "add"'):
            self.expect({"nn/b.cpp": f"\nbool b = {text};\n"}, breach)
        for text in ("&call.op == &op::add", "axis.name == label", "loop.name == x", 'f(op.name, "==")', "x; // op.name == y",
                     "a == op.name.size()", "figure_row.name == name"):
            self.assertEqual(self.run_on({"nn/b.cpp": f"\nbool b = {text};\n"})[0], 0, text)
        for place in ("runtime/op", "tests/op"):
            readmes = {f"{folder}/README.md": "" for folder in (place, place.split("/")[0])}
            self.assertEqual(self.run_on({**readmes, f"{place}/x.cpp": 'bool b = op.name == "add";\n'})[0], 0)

    def test_settings_are_read_once(self):
        for text in ("parse_device(flags.device)", "x = dtype_from_name\n  (name)", "parse_bytes(text)"):
            self.expect({"nn/b.cpp": f"\nauto x = {text};\n"}, "nn/b.cpp:2: ")
        good = {"nn/b.cpp": 'auto x = f("parse_count(x)") + parse_bytes_of(x);\n', "nn/plan/README.md": "",
                "nn/plan/x.cpp": "auto x = parse_count(text);\n"}
        self.assertEqual(self.run_on(good)[0], 0)

    def test_errno_before_the_call(self):
        breach = "nn/b.cpp:2: errno may be read before the call"
        for text in ('check(::mkdir(p, 0700) == 0 || errno == EEXIST, "{}", std::strerror(errno));',
                     'check(std::fwrite(a, 1, n, f) == n,\n      "{}", std::strerror(errno));',
                     'check_usage(::pipe2(ends, O_CLOEXEC) == 0, "a, b {}", errno);'):
            self.expect({"nn/b.cpp": f"\n{text}\n"}, breach)
        for text in ('const bool made = ::mkdir(p, 0700) == 0;\ncheck(made, "{}", std::strerror(errno));',
                     'check(file.is_open(), "{}", std::strerror(errno));', 'check(::stat(p, &s) == 0, "no {}", p);',
                     'check(sherd::fine(x), "{}", errno);'):
            self.assertEqual(self.run_on({"nn/b.cpp": f"\n{text}\n"})[0], 0, text)

    def test_umbrella_is_for_programs(self):
        tree = {"include/sherd/README.md": "", "include/sherd/sherd.h": '#pragma once\n#include "nn/d.h"\n',
                "tools/examples/README.md": ""}
        program = "#include <sherd/sherd.h>\n#include <sherdlike/x.h>\n"
        self.assertEqual(self.run_on({**tree, "tools/examples/e.cpp": program})[0], 0)
        self.expect({**tree, "nn/b.cpp": program}, "nn/b.cpp:1: <sherd/sherd.h> is for programs")
        self.expect({**tree, "tools/examples/e.cpp": "\n#include <sherd/nn.h>\n"}, "e.cpp:2: <sherd/nn.h> does not exist")
        self.expect({**tree, "include/sherd/sherd.h": '#pragma once\n#include "tests/c.h"\n'}, "include may not include tests")

    def twice(self, *files):
        """What defined_twice() finds in files, pairs of a path and text: (path, line, name, other path)."""
        codes = [(file, check_layers.code_of(text)) for file, text in files]
        return [(file, dict(codes)[file].count("\n", 0, at) + 1, name, other)
                for file, at, name, other in type_definitions.defined_twice(codes)]

    def test_types_defined_twice(self):
        first = "namespace a::b {\nclass X final : public Y<int> {\n  struct Z {};\n};\n}\n"
        for text in ("namespace a {\nnamespace b {\nstruct X { int f() { return 1; } struct Z {}; };\n}}\n",
                     "namespace a::b { enum class Kind : char { x };\n\ntemplate <class T, int n = (1 > 0)>\n"
                     "class [[nodiscard]] alignas(16) X {};\n}\n",
                     "int f() { return 0; }\nnamespace a::b { inline namespace c { int g(); }\nenum X { one }; }\n",
                     'extern "C" { int f(void); }\nnamespace a {\nstruct b::X : Y<decltype(f())> {}; }\n'):
            self.assertEqual(self.twice(("nn/d.h", first), ("nn/e.cpp", text)), [("nn/e.cpp", 3, "a::b::X", "nn/d.h")])
        for text in ("namespace a::b {\nclass X;\nX make(struct X* x);\n}\n", "namespace a { class X {}; }\n",
                     "namespace a::b { namespace { class X {}; }\nvoid f() { struct X {}; }\nstruct W { class X {}; }; }\n",
                     "namespace a::b {\n// class X {};\ntemplate <>\nstruct X<int> {};\nX x = {}, *y{};\nX f() { return {}; } }\n",
                     "#define SECOND namespace a::b { class X {}; }\n"):
            self.assertEqual(self.twice(("nn/d.h", first), ("nn/e.cpp", text)), [], text)
        self.expect({"nn/d.h": "#pragma once\nstruct X {};\n", "nn/e.cpp": "\nenum X {};\n"}, "nn/e.cpp:2: X is defined in nn/d.h too")

    def test_types_of_two_programs_may_have_one_name(self):
        x, program = "struct X {};\n", "struct X {};\nint main() {}\n"
        for one, other in ((("tests/nn/a.cpp", x), ("tests/comm/b.cpp", x)), (("tools/x.cpp", program), ("tools/y.cpp", program))):
            self.assertEqual(self.twice(one, other), [])
        for one, other in ((("tests/nn/a.cpp", x), ("tests/nn/b.cpp", x)), (("tests/nn/a.cpp", x), ("tests/support/b.h", x)),
                           (("nn/e.h", x), ("tools/y.cpp", program)), (("nn/e.h", x), ("tests/nn/a.cpp", x))):
            self.assertEqual(self.twice(one, other), [(other[0], 1, "X", one[0])])
    def test_weight(self):
        row = '"{}" = {{ statements = {}, files = 9, types = 9 }}\n'
        rows = "[folders]\n" + row.format("runtime", 9) + row.format("nn", 9) + row.format("tools", 0)
        self.expect({"tools/weight.toml": rows}, "tools: 1 statements, its row in tools/weight.toml allows 0")

    def test_environment(self):
        self.expect({"nn/b.cpp": 'auto* x = getenv("X");\n'}, "environment variables")


if __name__ == "__main__":
    unittest.main()

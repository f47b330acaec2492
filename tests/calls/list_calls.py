#!/usr/bin/env python3
"""Lists the calls that take tensors in the headers of <sherd/sherd.h>, and of those behind tensors, slots and
optimizers, as C++: one line for each function, static function and method that has a tensor among its parameters, and
for each method of Tensor.

    list_calls.py ROOT public_calls.cpp     # and public_calls.cpp.d, which says what it was made from

Nobody keeps the list by hand: a new function is in it, and it does not compile until it knows a
value for each of its parameters. Left out are templates but those of Tensor itself, virtual methods, which users write,
and operators."""
import re
import sys
from pathlib import Path


def faces(root):
    """sherd.h, and the headers of include/sherd that it includes."""
    umbrella = root / "include/sherd/sherd.h"
    return [umbrella, *(root / "include" / face for face in re.findall(r"#include <(sherd/[^>]+)>", umbrella.read_text()))]


def headers(root):
    named = [name for face in faces(root) for name in re.findall(r'#include "([^"]+)"', face.read_text())]
    return named + ["runtime/autograd/slot.h", "nn/optim/optimizer.h", "runtime/op/core/tensor_handle.h",
                    "runtime/op/rows/optimizer.h"]


def without_comments(text):
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"^\s*#.*(?:\\\n.*)*$", "", text, flags=re.M)


def split(text, at):
    """Parts between the separators that are in no bracket."""
    parts, depth, part = [], 0, ""
    for i, c in enumerate(text):
        depth += c in "([{<"
        depth -= c in ")]}" or (c == ">" and text[i - 1] != "-")
        if c == at and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    return parts + [part]


def statements(text):
    """Declarations of this level: (what stands before, the body in braces or None)."""
    start = i = 0
    depth = 0
    while i < len(text):
        c = text[i]
        depth += c == "("
        depth -= c == ")"
        if c == ";" and depth == 0:
            yield text[start:i], None
            start = i + 1
        elif c == "{" and depth == 0:
            nested, j = 1, i + 1
            while nested:
                nested += (text[j] == "{") - (text[j] == "}")
                j += 1
            yield text[start:i], text[i + 1:j - 1]
            i = j - 1
            start = j
        elif c == ":" and re.search(r"\b(public|private|protected)\s*$", text[start:i]):
            yield text[start:i].strip() + ":", None
            start = i + 1
        i += 1


FUNCTION = re.compile(r"^(?P<pre>.*?)\b(?P<name>[A-Za-z_]\w*)\s*\((?P<params>.*)\)(?P<post>\s*(?:const)?\s*(?:noexcept)?\s*)$",
                      re.S)


def parameter(text):
    """Its type, its name and whether it may be left out as an empty one."""
    text = " ".join(text.split())
    declared, *default = split(text, "=")
    declared = declared.strip()
    match = re.match(r"^(.*[\s&*>])(\w+)$", declared)
    kind, name = (match[1].strip(), match[2]) if match and match[1].strip() != "const" else (declared, "")
    if kind.split()[-1] in ("const", "unsigned"):
        kind, name = declared, ""
    return kind, name, bool(default) and default[0].strip() == "{}"


def calls_of(statement):
    statement = " ".join(statement.split())
    if "operator" in statement or statement.startswith(("friend", "using", "typedef", "extern")) or "virtual" in statement:
        return None
    statement = re.sub(r"\brequires\b.*", "", statement) if not statement.startswith("template") else statement
    statement = re.sub(r"\[\[.*?\]\]", "", statement).strip().removesuffix("override").strip()
    template = None
    if statement.startswith("template"):
        template = re.match(r"^template <class T>\s*", statement)
        if not template:
            return None
        statement = statement[template.end():]
    match = FUNCTION.match(statement)
    if not match or "=" in match["pre"] or re.search(r"(^|\s)\w+\($", match["pre"]):
        return None
    words = [w for w in match["pre"].replace("&", "& ").split() if w not in ("inline", "constexpr", "explicit")]
    is_static = "static" in words
    result = " ".join(w for w in words if w != "static").replace("& ", "&").strip()
    if not result or "~" in result:
        return None
    params = [parameter(p) for p in split(match["params"], ",")] if match["params"].strip() else []
    return dict(name=match["name"], result=result, params=params, static=is_static, const="const" in match["post"],
                template=bool(template))


def takes_tensors(call):
    return any(re.search(r"\bTensor\b", kind) for kind, _, _ in call["params"])


def line(call, scope, owner):
    kinds = ", ".join(k for k, _, _ in call["params"])
    if call["template"]:
        if owner != "Tensor":
            return None
        kinds = re.sub(r"\bT\b", "float", kinds)
        call["result"] = re.sub(r"\bT\b", "float", call["result"])
    name = "::".join(p for p in (scope, owner, call["name"]) if p)
    pointer = name + ("<float>" if call["template"] else "")
    names = ", ".join(f'"{n}"' for _, n, _ in call["params"])
    optional = sum(1 << i for i, (_, _, may_be_left_out) in enumerate(call["params"]) if may_be_left_out)
    member = owner and not call["static"]
    of = f"({scope}::{owner}::*)" if member else "(*)"
    const = " const" if member and call["const"] else ""
    function = "method" if member else "function"
    return (f'  bench.{function}("{name}", {{{names}}}, {optional}u, '
            f'static_cast<{call["result"]} {of}({kinds}){const}>(&{pointer}));')


def members(body, scope, owner, access, out):
    for text, inner in statements(body):
        text = text.strip()
        if text in ("public:", "private:", "protected:"):
            access = text[:-1]
            continue
        nested = re.match(r"(struct|class)\s+(\w+)\b", text)
        if access == "public" and nested and inner is not None:
            members(inner, scope, f"{owner}::{nested[2]}", "public" if nested[1] == "struct" else "private", out)
        if access != "public" or re.match(r"(struct|class|enum|union)\b", text):
            continue
        text = re.sub(r"\)\s*:\s.*$", ")", text, flags=re.S)
        call = calls_of(text)
        if call and (takes_tensors(call) or owner == "Tensor" and not call["static"]):
            out.append(line(call, scope, owner))


def walk(text, scope, out):
    for text, body in statements(text):
        text = text.strip()
        if body is not None and text.startswith("namespace"):
            inside = text[len("namespace"):].strip()
            walk(body, "::".join(p for p in (scope, inside) if p), out)
            continue
        kind = re.match(r"(?:template <.*>\s*)?(struct|class)\s+(\w+)\b", text)
        if body is not None and kind:
            if not text.startswith("template"):
                owner = "Tensor" if kind[2] == "TensorHandle" else kind[2]  # whose methods are a tensor's
                members(body, scope, owner, "public" if kind[1] == "struct" else "private", out)
            continue
        if "::" in text.split("(")[0].split()[-1:][0] if text.split("(")[0].split() else False:
            continue  # a definition of a member
        call = calls_of(text)
        if call and not call["template"] and takes_tensors(call):
            out.append(line(call, scope, ""))


BEFORE = ['#include "tests/calls/bench.h"', "namespace sherd::testing {", "void try_public_calls(Bench& bench) {",
          "  using namespace nn;"]
AFTER = ["}", "}  // namespace sherd::testing"]


def main():
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    lines = []
    for header in headers(root):
        calls = []
        walk(without_comments((root / header).read_text()), "", calls)
        if any(calls):
            lines += [f"  // {header}", *filter(None, calls)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join([*BEFORE, *lines, *AFTER]) + "\n")
    read = " ".join(map(str, [*faces(root), *(root / header for header in headers(root))]))
    Path(f"{out}.d").write_text(f"{out}: {read}\n")


main()

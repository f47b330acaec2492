"""Finds state of the library that a captured step may read and that no recording sees.

A class that a step reads keeps what can change between calls in one struct of fields (runtime/op/core/host_state.h), each
with who sees the change. tools/host_state.toml lists the classes, and their other data members with the reason why a
replay is right without them; a member that neither has is a breach. Classes derived from one of BASES are found by
themselves. Works on text without comments, literals and preprocessor lines.
"""
import re
import tomllib

from type_definitions import TYPE, after_brackets, definitions, without_prefix

BASES = {"Layer", "Module", "ModuleHook", "GradSink", "Optimizer"}
# A field of HostState sees for itself; a reference, or a const member, does not change.
CANNOT_CHANGE = re.compile(r"\bHostState\s*<|&|^const\s+(?!.*\*)|\*\s*const\b")
NO_MEMBER = re.compile(r"^(?:using|friend|typedef|static|enum|class|struct|union|template|public|protected|private)\b")


def without_templates(text):
    """The text without what stands between '<' and '>' of template arguments."""
    result, at = "", 0
    while at < len(text):
        if text[at] == "<" and result and (result[-1].isalnum() or result[-1] == "_"):
            at = after_brackets(text, at)
        else:
            result += text[at]
            at += 1
    return result


def body_of(code, at):
    """The text between the braces of the type whose definition begins at `at`."""
    begin = code.index("{", at) + 1
    depth, end = 1, begin
    while depth:
        depth += {"{": 1, "}": -1}.get(code[end], 0)
        end += 1
    return code[begin:end - 1]


def is_function(text):
    """Whether a declaration that ends with a body is that of a function, and not of a value or a type."""
    plain = without_templates(text)
    return "(" in plain.partition("=")[0] and plain.count("(") == plain.count(")")


def statements(body):
    """The declarations of a class, each without the inside of its braces."""
    text, depth = "", 0
    for char in body:
        if char == "}":
            depth -= 1
            # A function ends with its body; an initializer and a type in the class go on to the ';'.
            if depth == 0 and is_function(text):
                yield text
                text = ""
                continue
        if depth == 0:
            if char == ";":
                yield text
                text = ""
                continue
            text += char if char not in "{}" else " {} " if char == "{" else ""
        depth += char == "{"


def data_members(body):
    """Yields (name, type) of the data members that a class declares itself, but for static ones."""
    for statement in statements(body):
        head = re.sub(r"\b(?:public|protected|private)\s*:(?!:)", " ", statement).strip()
        head = re.sub(r"^(?:mutable|inline)\s+", "", head)
        if not head or NO_MEMBER.match(head) or "operator" in head:
            continue
        plain = without_templates(head).replace("{}", " ")
        if "(" in plain.partition("=")[0]:
            continue
        while re.search(r"\([^()]*\)", plain):  # an initializer may call, with commas
            plain = re.sub(r"\([^()]*\)|\[[^\[\]]*\]", " ", plain)
        plain = re.sub(r"=[^,]*", " ", plain)
        for part in plain.split(","):
            names = re.findall(r"[A-Za-z_]\w*", part.split(":")[0] if re.search(r"[^:]:[^:]", part) else part)
            if names and names[-1] != "const":
                yield names[-1], head


def classes(codes):
    """Yields (file, line, qualified name, bases, body) of each class defined in the library's and the tools' code, also
    of those that a file keeps to itself."""
    for file, code in codes.items():
        if file.split("/")[0] == "tests":
            continue
        code = re.sub(r"\bnamespace\s*\{", "namespace own {", code)
        for name, at, _ in definitions(code):
            head = without_prefix(code[at:code.index("{", at)])
            match = TYPE.match(head)
            if not match or re.match(r"(?:enum|union)\b", head):
                continue
            bases = set(re.findall(r"\b[A-Za-z_]\w*\b", without_templates(head[match.end():].partition(":")[2])))
            yield file, code.count("\n", 0, at) + 1, name.replace("own::", ""), bases, body_of(code, at)


def breaches(root, codes):
    """Yields (file, line, text) for each data member that nobody accounts for, and each entry that is out of date."""
    table = root / "tools/host_state.toml"
    if not table.is_file():
        return
    listed = tomllib.loads(table.read_text(encoding="utf-8"))
    seen = set()
    for file, line, name, bases, body in classes(codes):
        if name not in listed and not bases & BASES:
            continue
        reasons = {member: reason for reason, members in listed.get(name, {}).items() for member in members}
        seen.add(name)
        members = {member: kind for member, kind in data_members(body) if not CANNOT_CHANGE.search(kind)}
        for member in members.keys() - reasons.keys():
            yield (file, line, f"{name}::{member} may change between two calls of a captured step, and no replay sees it: "
                             "make it a field of the class's HostState, or say in tools/host_state.toml why not")
        for member in reasons.keys() - members.keys():
            yield file, line, f"tools/host_state.toml lists {name}::{member}, which is not there"
    for name in listed.keys() - seen:
        yield "tools/host_state.toml", 1, f"there is no class {name}"

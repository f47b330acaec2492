"""Finds the types that C++ files define, by namespace, and those that two files define.

A class defined twice in one namespace breaks the one-definition rule where no compiler looks: a program that includes
both headers does not compile, and of two members with one name the linker takes either. What one file keeps to itself
(in an unnamed namespace, in a function) is left out, and so are two definitions in one file, of which the preprocessor
takes one. Works on text without comments, literals and preprocessor lines.
"""
import collections
import re

ACCESS = re.compile(r"^\s*(?:public|protected|private)\s*:(?!:)")
ATTRIBUTE = re.compile(r"\[\[.*?\]\]|\b(?:alignas|decltype|noexcept|__attribute__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", re.S)
NAMESPACE = re.compile(r"^(?:inline\s+)?namespace\b\s*([\w:\s]*)$")
MAIN = re.compile(r"^int main\s*\(", re.M)
TYPE = re.compile(r"^(?:requires\b.*?\s)?(?:typedef\s+)?(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+([A-Za-z_][\w:]*)\s*",
                  re.S)


def after_brackets(text, start):
    """The place after the '>' that closes the '<' at `start`; what stands in parentheses does not count."""
    depth = parentheses = 0
    for at in range(start, len(text)):
        parentheses += {"(": 1, ")": -1}.get(text[at], 0)
        if parentheses == 0:
            depth += {"<": 1, ">": -1}.get(text[at], 0)
            if depth == 0:
                return at + 1
    return len(text)


def without_prefix(head):
    """The head of a definition without access, attributes and template parameters."""
    while match := ACCESS.match(head):
        head = head[match.end():]
    head = ATTRIBUTE.sub(" ", head).strip()
    while match := re.match(r"(?:export\s+)?template\s*(?=<)", head):
        head = head[after_brackets(head, match.end()):].strip()
    return head


def scope_of(head):
    """What the brace after `head` opens: ("namespace" or "type", name), or None for all else."""
    head = without_prefix(head)
    if head == "extern":  # "C": the literal is gone
        return "namespace", ""
    if match := NAMESPACE.match(head):
        name = re.sub(r"\binline\b|\s", "", match[1])
        return ("namespace", name) if name else None
    match = TYPE.match(head)
    if not match:
        return None
    name, rest = match[1], head[match.end():]
    if rest.startswith("<"):  # a specialization
        end = after_brackets(rest, 0)
        name, rest = name + re.sub(r"\s+", "", rest[:end]), rest[end:].lstrip()
    rest = re.sub(r"^final\b\s*", "", rest)
    return ("type", name) if not rest or rest.startswith(":") else None


def definitions(code):
    """Yields (qualified name, place, whether in no other type) of each type that `code` defines for others to see."""
    scopes, head_start = [], 0
    for brace in re.finditer(r"[{};]", code):
        if brace[0] == "{":
            scope = None if None in scopes else scope_of(code[head_start:brace.start()])
            scopes.append(scope)
            if scope and scope[0] == "type":
                head = code[head_start:brace.start()]
                outermost = all(kind == "namespace" for kind, _ in scopes[:-1])
                yield "::".join(name for _, name in scopes if name), head_start + len(head) - len(head.lstrip()), outermost
        elif brace[0] == "}" and scopes:
            scopes.pop()
        head_start = brace.end()


def program_of(file, code):
    """The program that the types of a file belong to; None for those that every program may have: of libraries and of
    tests/support."""
    if MAIN.search(code):
        return file
    top, folder = (file.split("/") + [""])[:2]
    return f"tests/{folder}" if top == "tests" and folder != "support" else None


def defined_twice(files):
    """Yields (file, place, name, other file) for each type that an earlier one of `files`, pairs of a path and code,
    defines too, if one program may have both. Types nested in it are not named."""
    seen = collections.defaultdict(list)
    for file, code in files:
        program, found = program_of(file, code), []
        for name, at, _ in definitions(code):
            others = [other for other, of in seen[name] if other != file and (None in (of, program) or of == program)]
            seen[name].append((file, program))
            if others and not any(name.startswith(f"{outer}::") for outer in found):
                found.append(name)
                yield file, at, name, others[0]

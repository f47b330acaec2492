"""Finds the public types: what the headers of include/sherd, and those that these include by name, make a user read.

A type is public if a declaration of such a header names it: a function's parameter or result, a public or protected
member, a base. Bodies of functions, private members, namespaces called detail and types within other types do not
count; nor does what no installed header defines. tools/face.txt lists them, so that one more, or one less, is a line of
a commit that says why. `check_layers.py --face` prints the list.
"""
import re

from type_definitions import definitions, scope_of

LIST = "tools/face.txt"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.M)
TOKEN = re.compile(r"[{};]|\b(?:public|private|protected)\s*:(?!:)")
NAME = re.compile(r"\b[A-Z]\w*\b")
PRIVATE_BY_DEFAULT = re.compile(r"\bclass\b(?!.*\benum\b)[^;{]*$", re.S)


def included(text):
    """Headers of the tree that `text` includes; a face by its path there."""
    return [f"include/{name}" if name.startswith("sherd/") else name for name in INCLUDE.findall(text)]


def headers_of_faces(texts):
    """(headers that faces include, all that those reach); `texts` is {file: text}."""
    faces = [file for file in texts if file.startswith("include/sherd/") and file.endswith(".h")]
    named = {header for face in faces for header in included(texts[face]) if header in texts and header not in faces}
    reached, waiting = set(), sorted(named)
    while waiting:
        header = waiting.pop()
        if header not in reached:
            reached.add(header)
            waiting += [other for other in included(texts[header]) if other in texts]
    return sorted(named), reached


def public_declarations(code):
    """The code without bodies of functions, private members and details."""
    kept, scopes, start = [], [], 0  # scopes: (what it is, whether its members are for others)
    for token in TOKEN.finditer(code):
        text = code[start:token.start()]
        is_seen = all(is_public for _, is_public in scopes)
        if is_seen:
            kept.append(text)
        if token[0] == "{":
            kind, name = scope_of(text) or ("body", "")
            is_detail = kind == "namespace" and name.split("::")[-1] == "detail"
            is_private = kind == "type" and not re.search(r"\benum\b", text) and PRIVATE_BY_DEFAULT.search(text)
            scopes.append((kind, kind != "body" and not is_detail and not is_private))
        elif token[0] == "}":
            if scopes:
                scopes.pop()
        elif token[0] != ";" and scopes and scopes[-1][0] == "type":
            scopes[-1] = ("type", not token[0].startswith("private"))
        start = token.end()
    return "\n".join(kept)


def public_types(texts, codes):
    """{qualified name: headers of faces that name it}; `texts` and `codes` are of C++ files, by path."""
    named, reached = headers_of_faces(texts)
    known, found = {}, {}
    for header in reached:
        for name, _, is_outermost in definitions(codes[header]):
            if is_outermost and "<" not in name and "detail" not in name.split("::"):
                known.setdefault(name.split("::")[-1], []).append(name)
    for header in named:
        here = list(definitions(codes[header]))
        nested = {name.split("::")[-1] for name, _, is_outermost in here if not is_outermost}
        spaces = {name.rpartition("::")[0] for name, _, is_outermost in here if is_outermost}
        for word in sorted(set(NAME.findall(public_declarations(codes[header]))) - nested):
            names = known.get(word, [])
            own = [name for name in names if name.rpartition("::")[0] in spaces]  # they hide those of other namespaces
            for name in own or names:
                found.setdefault(name, []).append(header)
    return found


def breaches(root, texts, codes):
    path = root / LIST
    if not path.is_file():
        return
    listed = set(path.read_text(encoding="utf-8").split())
    found = public_types(texts, codes)
    for name in sorted(found.keys() - listed):
        yield (f"{found[name][0]}: names {name}, which is no public type yet; name it in {LIST} in a commit that says why, "
               "or let no public declaration name it")
    for name in sorted(listed - found.keys()):
        yield f"{LIST}: no header that programs include names {name}; take it out"

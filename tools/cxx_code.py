"""Finds the code in C++ text: what is left of it without comments, literals and preprocessor lines."""
import re

# A number comes first, for the ' in 10'000 opens no literal.
NO_CODE = re.compile(
    r"(?<!\w)\d\w*(?:'\w+)+"
    r'|//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*',
    re.S | re.M)


def code_of(text):
    """The text with blanks for what is no code, so that every place stays where it is."""
    return NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)

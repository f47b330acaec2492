"""Facts: named values that programs print as JSON lines, and conditions on them.

A line {"name": ..., "value": ...} is a fact as it stands, with whatever else it holds (unit, peer, limit, note). Any other
object belongs to the step whose program prints it: {"seconds": [0.5], "facts": {"cuDNN": "9.19"}} of step "graph" gives
"graph.seconds" and "graph.facts.cuDNN". Of a program that answers requests, the objects after its greeting are named by the
step's labels: "limits.copy.seconds". "NAME.KEY" also reads another entry of a fact: "gpu.gemm.square.limit".
"""

import json
import operator
import re

OPERATORS = {"==": operator.eq, "!=": operator.ne, "<=": operator.le, "<": operator.lt, ">=": operator.ge,
             ">": operator.gt, "has": lambda text, part: str(part) in str(text)}
CONDITION = re.compile(r"(.+?) (==|!=|<=|>=|<|>|has) (.+)")


def objects(text):
    """The JSON objects among the lines of a text."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:  # cut off, or not JSON
                pass
    return found


def flattened(prefix, value):
    """Facts of what is nested; a list of one is its element, a longer one stays a list."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return {prefix: {"value": value}}
    facts = {}
    for key, part in value.items():
        facts.update(flattened(f"{prefix}.{key}", part))
    return facts


def read(step, labels, text):
    """The facts of a program's output; with them the card it names and what it says went wrong, or None."""
    facts, card, error = {}, None, None
    labels = list(labels)
    for found in objects(text):
        card = found.get("device") or card
        if "error" in found:
            error = error or str(found["error"])
            labels = labels[1:]
        elif "name" in found and "value" in found:
            facts[found["name"]] = found
        elif "peer" in found:  # the greeting of a program that answers requests
            continue
        else:
            label = labels.pop(0) if labels else None
            prefix = f"{step}.{label}" if label and set(found) != {label} else step
            facts.update(flattened(prefix, {key: value for key, value in found.items() if key != "device"}))
    return facts, card, error


def lookup(facts, name):
    """The value of a fact or of an entry beside it; None if there is none."""
    if name in facts:
        return facts[name].get("value")
    name, _, key = name.rpartition(".")
    fact = facts.get(name, {})
    return fact.get(key, (fact.get("detail") or {}).get(key))


def parse(condition):
    name, sign, text = CONDITION.fullmatch(condition).groups()
    try:
        return name, sign, json.loads(text)
    except ValueError:
        return name, sign, text


def holds(condition, facts):
    """Whether "NAME OPERATOR VALUE" is so; None where the fact is missing."""
    name, sign, wanted = parse(condition)
    value = lookup(facts, name)
    if value is None:
        return None
    try:
        return bool(OPERATORS[sign](value, wanted))
    except TypeError:  # a text where a number was expected
        return False


def all_hold(conditions, facts):
    """False if one is not so; else None if one is not known."""
    found = [holds(condition, facts) for condition in conditions]
    return False if False in found else None if None in found else True

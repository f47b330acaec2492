"""What a check says: a line for each step while it runs; then, in few characters, the figures beside what was predicted, the
failures, and the open questions with their answers."""

import json
import pathlib

import facts
import steps

LIMIT = 11_500  # characters of the report: whoever sees only the end of the output sees all of it
LINE = 300      # of one line
JUDGED_TORCH = "torch 2.15"  # the version whose ratios are held against the targets
JUDGED_CARD = "H200"         # the card whose absolute figures are
HERE = pathlib.Path(__file__).absolute().parent


def read(name):
    return json.loads((HERE / name).read_text())


def announce(step):
    print(f"== {step.name}", flush=True)


def tell(step, outcome):
    status, seconds = outcome["status"], outcome["seconds"]
    if status == "ok":
        print(f"   {step.name}: ok, {seconds:.1f} s{': ' + outcome['note'] if outcome['note'] else ''}", flush=True)
    else:
        print(f"   {step.name}: {status}, {seconds:.1f} s: {outcome['why'][:400]}", flush=True)


def short(card):
    return card.replace("NVIDIA ", "").split(",")[0].strip()


def number(x):
    return f"{x:.0f}" if abs(x) >= 1e4 else f"{x:.4g}"


def predicted(row, layers=2):
    """The prediction of a row; a part of a step grows with the layers."""
    return row["layer"] * layers + row["step"] if "layer" in row else row.get("predicted")


def measured(row, known):
    """The value of a row in its unit; None if there is no number."""
    value = facts.lookup(known, row["fact"])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if "per" not in row else row["per"] / value if value else None


def verdict(row, fact, value, card):
    """Ratios count on any card, absolute targets on one; beside another torch than the judged one a ratio is only told."""
    judged = lambda is_good, missed: "ok" if is_good else f"MISSED {missed}"
    said = []
    if "ratio_at_least" in row and fact.get("ratio") is not None:
        target = f"{row['ratio_at_least']}x"
        if (fact.get("peer") or "").startswith(JUDGED_TORCH):
            said.append(judged(fact["ratio"] >= row["ratio_at_least"], target))
        else:
            said.append(f"not judged ({target} of {JUDGED_TORCH})")
    if "factor_at_most" in row and fact.get("limit"):
        said.append(judged(value / fact["limit"] <= row["factor_at_most"], f"{row['factor_at_most']}x of the limit"))
    if "at_least" in row and JUDGED_CARD in (card or ""):
        said.append(judged(value >= row["at_least"], f">= {row['at_least']}"))
    return ", ".join(said)


def table(known, card):
    """A line for each figure that was predicted."""
    expected = read("predictions.json")
    lines = []
    for row in expected["rows"]:
        value, guess = measured(row, known), predicted(row)
        if value is None:
            lines.append(f"{row['what']:<42} not reached")
            continue
        fact = known.get(row["fact"], {})
        parts = [f"{number(value)} {row['unit']}", f"predicted {number(guess)}" if guess is not None else ""]
        parts.append(f"limit {number(fact['limit'])}" if fact.get("limit") else "")
        if fact.get("ratio") is not None:
            parts[2] = f"{fact['ratio']:.2f}x {fact['peer']}"
        on = fact.get("device")
        tail = [verdict(row, fact, value, on), f"[{short(on)}]" if on and short(on) != short(card) else "", fact.get("note", "")[:90]]
        lines.append(f"{row['what']:<42} {parts[0]:<16} {parts[1]:<16} {parts[2]:<18} {' '.join(filter(None, tail))}".rstrip())
    lines.append(f"Predictions are for one {expected['device']}, {expected['what']}.")
    return lines


def questions(known):
    lines = []
    for row in read("questions.json"):
        answer = facts.all_hold(row["yes_if"], known) if "yes_if" in row else None
        why = f" ({row['because']})" if "because" in row else ""
        if "yes_if" in row and answer is not None:
            seen = [facts.lookup(known, facts.parse(condition)[0]) for condition in row["yes_if"]]
            why = f" ({', '.join(number(x) if isinstance(x, float) else str(x)[:40] for x in seen)})"
        lines.append(f"{'not reached' if answer is None else 'yes' if answer else 'NO':<12} {row['question']}{why}")
    return lines


def clipped(lines, limit, where):
    """The first line and as many others as fit, and where the rest is."""
    more = f"... {len(lines)} more lines in {where}"
    kept = [lines[0][:max(40, min(LINE, limit - len(more) - 2))]]
    left = limit - len(kept[0]) - len(more) - 2
    for line in lines[1:]:
        left -= len(line[:LINE]) + 1
        if left < 0:
            return kept + [more.replace(str(len(lines)), str(len(lines) - len(kept)), 1)]
        kept.append(line[:LINE])
    return kept


def failures(state, limit):
    """What failed, was not reached or was left out; each failure has an equal share of what is left."""
    by_status = {}
    for step in steps.STEPS:
        by_status.setdefault(state.status(step.name), []).append(step.name)
    text = []
    for name in by_status.get("absent", []):
        text.append(f"{name}: left out, {state.steps[name]['why']}")
    if by_status.get("not reached"):
        text.append(f"not reached: {', '.join(by_status['not reached'])}")
    left = limit - sum(len(line) + 1 for line in text)
    failed = by_status.get("failed", [])
    for place, name in enumerate(failed):
        outcome = state.steps[name]
        piece = clipped([f"FAILED {name}, {outcome['seconds']:.0f} s: {outcome['why']}"] +
                        ["  " + line for line in outcome["lines"]], left // (len(failed) - place), f"logs/{name.replace(' ', '-')}.log")
        left -= sum(len(line) + 1 for line in piece)
        text += piece
    return text


def text(state, out):
    known = state.known()
    done = [step.name for step in steps.STEPS if state.status(step.name) == "ok"]
    failed = [step.name for step in steps.STEPS if state.status(step.name) == "failed"]
    first = [f"---- {state.card or 'a card that did not say its name'}: {len(done)} steps ok, {len(failed)} failed, "
             f"{len(steps.STEPS) - len(done) - len(failed)} others; results in {out}"]
    first += clipped(table(known, state.card), LIMIT * 2 // 5, "state.json")
    last = ["-- open questions"] + clipped(questions(known), LIMIT * 3 // 10, "questions.json")
    left = LIMIT - sum(len(line) + 1 for line in first + last) - 20
    return "\n".join(first + ["-- failures"] + (failures(state, left) or ["none"]) + last)

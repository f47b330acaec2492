"""What a stage says: a line for each step while it runs; at the end the figures and every failure, in few characters."""

import results

LIMIT = 11_500  # characters of the last report: whoever sees only the end of the output sees all of it
LINE = 400  # of one line


def announce(step):
    print(f"== {step.name}", flush=True)


def tell(step, result):
    if result.status == "absent":
        print(f"   left out: {result.why}", flush=True)
    elif result.failed:
        print(f"   FAILED, {result.seconds:.0f} s: {result.why[:400]}", flush=True)
    else:
        print(f"   ok, {result.seconds:.1f} s{': ' + result.note[:600] if result.note else ''}", flush=True)


def clipped(lines, limit, where):
    """The lines, or as many as fit and where the others are."""
    lines = [line[:LINE] for line in lines]
    kept, size = [], 0
    for line in lines:
        size += len(line) + 1
        if size > limit:
            return kept + [f"... {len(lines) - len(kept)} more lines in {where}"]
        kept.append(line)
    return kept


def finish(host):
    """Prints the report; returns the number of steps that failed."""
    failed = [(step, result) for step, result in host.notes if result.failed]
    figures = results.table(results.read_lines(host.out / "figures.jsonl")) if (host.out / "figures.jsonl").exists() else []
    tables = [line for _, result in host.notes for line in result.lines if not result.failed]
    text = [f"---- {host.stage} on {host.device or 'a device that did not say its name'}"]
    wanted = sum(len(result.why) + 100 + sum(min(len(line), LINE) + 1 for line in result.lines) for _, result in failed)
    share = max(LIMIT // 2, LIMIT - 500 - wanted)
    text += clipped(figures + tables, share, host.out)
    left = LIMIT - sum(len(line) + 1 for line in text) - 200
    for number, (step, result) in enumerate(failed):
        piece = [f"-- FAILED: {step.name}: {result.why[:600]}"]
        piece += clipped(result.lines, max(300, left // (len(failed) - number) - len(piece[0])), host.log)
        left -= sum(len(line) + 1 for line in piece)
        text += piece
    text.append(f"{host.stage}: {len(host.notes)} steps, {len(failed)} failed; results in {host.out}")
    print("\n".join(text), flush=True)
    return len(failed)

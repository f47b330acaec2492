"""Steps of llama1b, captured, beside those of torch.compile with the same policy (bf16, f32 masters and reductions).

The sides take turns, twice each, and only one of them has the card at a time: two trainings do not fit beside each other on
every card. Where torch does not fit alone, both take half the sequences; ours is then also known at the full size. Without
torch ours is measured alone.
"""

import collections
import json
import statistics
import subprocess
import sys
import tempfile

from host import call, word

ROUNDS = 2
NO_MEMORY = ("OutOfMemoryError", "out of memory", "CUDA_ERROR_OUT_OF_MEMORY")
TOKENS = {"llama1b": 4096, "tiny_llama": 8}  # of a sequence
GB = 1e9

Turn = collections.namedtuple("Turn", "name seconds peak_bytes loss how")


class SideFailed(Exception):
    """What a side said last, and whether it was out of memory."""

    def __init__(self, said, everything):
        super().__init__(said)
        self.is_out_of_memory = any(part in everything for part in NO_MEMORY)


def turn(command, request, cwd):
    """Starts a side, asks it once and ends it. It prints an object when it is ready, and one for the request."""
    with tempfile.TemporaryFile("w+") as errors:
        side = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                text=True, cwd=cwd)  # in this program's group, which is stopped whole
        try:
            said, _ = side.communicate(request + "\n")
        finally:
            side.kill()
        answers = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        errors.seek(0)
        text = errors.read()
    wrong = next((answer["error"] for answer in answers if "error" in answer), None)
    if wrong or len(answers) != 2 or "seconds" not in answers[1]:
        last = [line for line in text.splitlines() if line.strip()][-1:]
        raise SideFailed(wrong or (last[0] if last else f"status {side.returncode} without an answer"), f"{wrong} {text}")
    greeting, answer = answers
    if "device" in greeting:
        print(json.dumps({"device": greeting["device"]}), flush=True)
    return Turn(greeting["peer"], answer["seconds"][0], answer.get("device_peak_bytes", 0), answer["loss"],
                answer.get("how"))


class Duel:
    def __init__(self, of):
        self.of, self.model = of, word("model", of.dry)
        self.steps = 1 if of.dry else 6
        self.note = ""

    def ours(self, batch):
        flags = ["--model", self.model, "--dtype", "bf16", "--device", "cuda", "--batch", batch]
        return turn(["sherd", "bench", "--child", "step", *flags], str(self.steps), self.of.bundle)

    def torch(self, batch):
        script = self.of.bundle / "tools/bench/peers/gpu_step.py"
        return turn([self.of.torch, script, self.model, batch], f"default {self.steps}", self.of.bundle)

    def say(self, batch, ours, theirs):
        """What is known so far: a side that hangs later takes none of it away."""
        tokens = batch * TOKENS[self.model]
        rate = lambda turns: tokens / statistics.median(one.seconds for one in turns)
        step = {"name": "llama1b.step", "value": rate(ours), "unit": "tokens/s", "tokens": tokens, "rounds": [one.seconds for one in ours],
                "loss": ours[-1].loss, "how": ours[-1].how, "note": f"{tokens} tokens{self.note}"}
        peak = {"name": "llama1b.peak", "value": max(one.peak_bytes for one in ours) / GB, "unit": "GB"}
        if theirs:
            best = max(one.peak_bytes for one in theirs) / GB
            step.update(peer=theirs[0].name, peer_value=rate(theirs), ratio=rate(ours) / rate(theirs),
                        peer_rounds=[one.seconds for one in theirs], peer_loss=theirs[-1].loss)
            if best and peak["value"]:  # a dry run's torch has no card
                peak.update(peer=theirs[0].name, peer_value=best, ratio=best / peak["value"])
        print(json.dumps(step), json.dumps(peak), sep="\n", flush=True)
        return step

    def hold(self, batch):
        """Both sides in turn. Returns what torch failed with, or None."""
        ours, theirs, failed = [], [], None
        for _ in range(ROUNDS):
            ours.append(self.ours(batch))
            step = self.say(batch, ours, theirs)
            if not self.of.torch or failed:
                continue
            try:
                theirs.append(self.torch(batch))
            except SideFailed as error:
                failed = error
                if error.is_out_of_memory:
                    self.note = f", {step['value']:.0f} tokens/s alone at {step['tokens']} tokens"
                    break
            self.say(batch, ours, theirs)
        return failed


def main():
    of = call()
    duel, full = Duel(of), int(word("batch", of.dry))
    try:
        failed = duel.hold(full)
        if of.torch and not (failed and not failed.is_out_of_memory):
            print(json.dumps({"name": "llama1b.fits", "value": failed is None}), flush=True)
        if failed and failed.is_out_of_memory:
            failed = duel.hold(full // 2)
    except SideFailed as error:
        print(f"---- ours\n{error}")
        return 1
    if failed:
        print(f"---- torch\n{failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

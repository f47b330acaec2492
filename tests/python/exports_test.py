"""transformers loads what `sherd export` wrote, without a warning of missing weights, and computes the logits of `sherd eval`.

Both kinds of model: the checkpoint of a short training, and a Hugging Face directory written anew in another dtype.
Usage: exports_test.py PROGRAM
"""
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import torch
import transformers
from safetensors.torch import load_file, save_file

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "huggingface"
PROGRAM = sys.argv.pop(1)
RECIPE = """
data = "{folder}/text.txt"
vocabulary = "bytes"
steps = 3
batch = 4
threads = 1
eval_batches = 1
[model]
style = "{style}"
layers = 2
width = 24
heads = 6
sequence = 12
bias = {bias}
"""


class Exports(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def sherd(self, *words):
        subprocess.run([PROGRAM, *map(str, words)], check=True, stdout=subprocess.DEVNULL)

    def expect_same_logits(self, model, vocabulary, *flags):
        """`model`: what `sherd eval` and `sherd export` read."""
        exported = self.folder / f"exported-{model.name}"
        self.sherd("export", model, exported, *flags)
        tokens = torch.randint(vocabulary, (3, 12), generator=torch.Generator().manual_seed(1))
        save_file({"tokens": tokens}, self.folder / "tokens.safetensors")
        self.sherd("eval", model, "--tokens", self.folder / "tokens.safetensors",
                   "--logits", self.folder / "logits.safetensors")
        ours = load_file(self.folder / "logits.safetensors")["logits"]

        theirs, found = transformers.AutoModelForCausalLM.from_pretrained(
            exported, dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
        for name, keys in found.items():
            self.assertFalse(keys, f"{name} in {model}")
        with torch.no_grad():
            torch.testing.assert_close(ours.double(), theirs(tokens).logits, rtol=1e-5, atol=1e-5)

    def test_a_trained_checkpoint(self):
        letters = random.Random(1)
        (self.folder / "text.txt").write_text("".join(letters.choice("abcde \n") for _ in range(4000)))
        for style, bias in (("gpt2", "true"), ("gpt2", "false"), ("llama", "false")):
            (self.folder / "run.toml").write_text(RECIPE.format(folder=self.folder, style=style, bias=bias))
            checkpoint = self.folder / f"checkpoint-{style}-{bias}"
            self.sherd("train", self.folder / "run.toml", "--save", checkpoint)
            self.expect_same_logits(checkpoint, 256)

    def test_a_directory_in_another_dtype(self):
        for name in ("gpt2_old", "llama_4"):
            self.expect_same_logits(GOLDEN / name, 67, "--dtype", "f32")


unittest.main()

"""transformers and sentence-transformers as people use them, in a process and an environment of their own.

Imports nothing of regard. Reads one request per line of standard input, and writes one reply per line, both as JSON.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROWS = 32  # of a batch of texts to embed, as sentence-transformers has


class SentenceTransformers:
    """`SentenceTransformer.encode` with its defaults."""

    def __init__(self, folder: str) -> None:
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(folder, device="cpu")

    def embed(self, lines: list[str], _request: dict[str, Any]) -> tuple[list[Any], int]:
        """One vector per line."""
        return list(self.model.encode(lines, show_progress_bar=False)), 0


class Encoder:
    """An encoder of transformers, with texts sorted by length, then the mean of the tokens."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer, self.model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def embed(self, lines: list[str], _request: dict[str, Any]) -> tuple[list[Any], int]:
        """One vector per line."""
        order, found = sorted(range(len(lines)), key=lambda index: -len(lines[index])), [None] * len(lines)
        with torch.inference_mode():
            for start in range(0, len(order), ROWS):
                indices = order[start : start + ROWS]
                batch = self.tokenizer([lines[index] for index in indices], padding=True, return_tensors="pt")
                states, real = self.model(**batch).last_hidden_state, batch["attention_mask"][..., None]
                means = torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=-1)
                for index, row in zip(indices, means.numpy()):
                    found[index] = row
        return found, 0


class LanguageModel:
    """A language model of transformers and its greedy `generate`."""

    def __init__(self, folder: str) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoModelForCausalLM

        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()

    def generate(self, lines: list[str], request: dict[str, Any]) -> tuple[list[Any], int]:
        """The continuations, and how many tokens they have."""
        found, tokens, first = [], 0, self.model.config.bos_token_id
        with torch.inference_mode():
            for line in lines:
                ids = torch.tensor([[first, *self.tokenizer.encode(line, add_special_tokens=False).ids]])
                row = self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1,
                                          max_new_tokens=request["max_tokens"], min_new_tokens=0)[0]  # fmt: skip
                tokens += len(row) - ids.shape[1]
                found.append(self.tokenizer.decode(row.tolist(), skip_special_tokens=True))
        return found, tokens


KINDS = {"sentence-transformers": SentenceTransformers, "encoder": Encoder, "language model": LanguageModel}


def main(kind: str, folder: str, threads: str) -> None:
    """Load the model, and answer requests until standard input ends; what else is printed goes to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(int(threads))
    model: Any = KINDS[kind](folder)
    for line in sys.stdin:
        request = json.loads(line)
        work, lines = getattr(model, request["task"]), request["lines"]
        groups = [[one] for one in lines] if request.get("one_by_one") else [lines]
        begun, cpu = time.perf_counter(), time.process_time()
        found = [work(some, request) for some in groups]
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        answers = [answer for some, _ in found for answer in some]
        told = [one if isinstance(one, str) else " ".join(f"{number:.1e}" for number in one[:4]) for one in answers]
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        reply = {"seconds": seconds, "cpu_seconds": cpu, "tokens": sum(count for _, count in found), "answers": told,
                 "peak_memory": 1024 * int(peak[1] if peak else 0)}  # fmt: skip
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

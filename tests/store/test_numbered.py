"""A published folder without a tokenizer is spoken to in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

import regard
from regard.errors import Note
from regard.store.convert import convert


def test_a_language_model_goes_on_in_numbers(tmp_path: Path):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=31, n_embd=24, n_layer=2, n_head=3, n_positions=32, bos_token_id=0, eos_token_id=0)
    theirs = GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path)
    with pytest.warns(Note, match="has no tokenizer"):
        model = regard.load(tmp_path)
    said = theirs.generate(torch.tensor([[5, 7, 9]]), max_new_tokens=6, do_sample=False, pad_token_id=0)[0].tolist()
    expected = said[: said.index(0)] if 0 in said else said
    assert model.generate("5 7 9", max_tokens=6, temperature=0) == " ".join(map(str, expected))


def test_a_translator_answers_in_numbers(tmp_path: Path):
    torch.manual_seed(0)
    config = T5Config(vocab_size=31, d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=3, decoder_start_token_id=0)
    theirs = T5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    with pytest.warns(Note, match="has no tokenizer"):
        model = regard.load(tmp_path)
    ids = torch.tensor([[5, 7, 9, 1]])
    with torch.no_grad():
        logits = theirs(input_ids=ids, decoder_input_ids=torch.tensor([[0, 4, 6]])).logits
        ours = model.network(torch.tensor([[0, 4, 6]]), source_ids=ids)
    torch.testing.assert_close(ours, logits, atol=1e-5, rtol=1e-5)
    said = theirs.generate(ids, max_new_tokens=8, num_beams=5)[0].tolist()[1:]
    expected = said[: said.index(1)] if 1 in said else said
    options = model.defaults()
    answer = model.translations(
        ["5 7 9"], type(options)(beam=5, max_tokens=8, normalization="length", ending="likely", length_penalty=1.0)
    )
    assert answer[0][0].text == " ".join(map(str, expected))


def test_tokens_that_the_model_does_not_have_play_no_part(tmp_path: Path):
    GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=24, n_layer=1, n_head=3, n_positions=32)).save_pretrained(
        tmp_path / "a"
    )
    with pytest.warns(Note, match="has no tokenizer"):
        convert(tmp_path / "a", tmp_path / "b", "regard")
    assert regard.load(tmp_path / "b").tokenizer.roles.begin is None

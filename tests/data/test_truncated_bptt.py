"""Truncated BPTT: every token is predicted once, and each segment continues where the previous one ended."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from regard.data.batching import IGNORE_INDEX, BatchSampler, Cursor
from regard.data.read.corpus import Corpus, concatenate_corpora
from regard.data.tasks import TruncatedBPTT
from regard.data.tasks.language_model import LanguageModel
from regard.data.tokenize.train import Byte
from regard.errors import InputError

BYTES = Byte().train([])
CORPUS = Corpus(["a rather long document, forty bytes or so", "", "né", "x", "seven b", "eight by"], None, ("text",))


def segments(length: int, streams: int, corpus: Corpus = CORPUS):
    samples = TruncatedBPTT(length, streams).samples(corpus, (BYTES, None))
    sampler = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams)
    return samples, [samples.batch(step) for step in sampler.epoch(0)]


@pytest.mark.parametrize("length", [1, 2, 4, 5, 7, 200])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 100])
def test_every_stream_continues_and_every_token_is_predicted_once(length: int, count: int):
    samples, batches = segments(length, count)
    tokens = samples.stream.tokens.tolist()
    starts = {start for start, size in zip(samples.stream.starts.tolist(), samples.stream.lengths.tolist()) if size}
    streams = [[] for _ in range(samples.streams)]
    targets = [[] for _ in range(samples.streams)]
    for batch in batches:
        assert set(batch.inputs) <= {"ids", "padding"}
        assert batch.inputs["ids"].shape[1] <= length + 1
        for stream in range(samples.streams):
            real = batch.inputs["padding"][stream] if "padding" in batch.inputs else slice(None)
            streams[stream] += batch.inputs["ids"][stream][real].tolist()
            targets[stream] += batch.targets[stream][real].tolist()
    assert [*chain(*streams)] == tokens[:-1]
    assert max(map(len, streams)) - min(map(len, streams)) <= 1
    expected = [IGNORE_INDEX if index in starts else token for index, token in enumerate(tokens)][1:]
    assert [*chain(*targets)] == expected


def test_targets_are_those_of_packed_rows():
    _, batches = segments(5, 3)
    packed = LanguageModel(5).samples(CORPUS, (BYTES, None))
    assert sum(batch.tokens for batch in batches) == packed.batch(range(len(packed))).tokens


def test_lengths_are_those_of_the_batches():
    samples, batches = segments(4, 3)
    sampler = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams)
    for step, batch in zip(sampler.in_order(), batches):
        longest = batch.inputs["ids"].shape[1]
        assert samples.lengths[step].max() == longest
        assert batch.inputs.get("padding", np.ones((samples.streams, longest))).sum() == samples.lengths[step].sum()


def test_every_epoch_is_the_same_and_any_cursor_is_reached_at_once():
    samples, _ = segments(4, 3)
    sampler, cursor, visited = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams), Cursor(), []
    while cursor.epoch == 0:
        fresh = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams).next_step(cursor)[0]
        step, cursor = sampler.next_step(cursor)
        assert fresh.tolist() == step.tolist()
        visited += step.tolist()
    assert visited == list(range(len(samples)))
    assert cursor == Cursor(1)


def test_a_short_text_has_fewer_streams():
    assert segments(200, 16)[0].streams == 1
    assert segments(20, 16)[0].streams == 3


def test_wrong_settings_and_weights_are_refused():
    with pytest.raises(InputError, match=r"streams must be 1 or more, got 0 \(text\.task\.streams\)"):
        TruncatedBPTT(streams=0)
    with pytest.raises(InputError, match=r"length = 0 leaves no room"):
        TruncatedBPTT(length=0)
    with pytest.raises(InputError, match=r"once per epoch \(text\.train\)\. Leave out the weights\."):
        TruncatedBPTT().samples(concatenate_corpora([(CORPUS, 2.0), (CORPUS, 1.0)]), (BYTES, None))

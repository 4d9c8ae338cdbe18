"""A text as streams: every token is asked once, and each window goes on where the one before it ended."""

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


def windows(length: int, rows: int, corpus: Corpus = CORPUS):
    samples = TruncatedBPTT(length, rows).samples(corpus, (BYTES, None))
    plan = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams)
    return samples, [samples.batch(step) for step in plan.epoch(0)]


@pytest.mark.parametrize("length", [1, 2, 4, 5, 7, 200])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 100])
def test_every_lane_goes_on_and_every_token_is_asked_once(length: int, rows: int):
    samples, batches = windows(length, rows)
    flat = samples.stream.flat.tolist()
    begins = {start for start, size in zip(samples.stream.starts.tolist(), samples.stream.lengths.tolist()) if size}
    streams = [[] for _ in range(samples.streams)]
    targets = [[] for _ in range(samples.streams)]
    for batch in batches:
        assert set(batch.inputs) <= {"ids", "padding"}
        assert batch.inputs["ids"].shape[1] <= length + 1
        for lane in range(samples.streams):
            real = batch.inputs["padding"][lane] if "padding" in batch.inputs else slice(None)
            streams[lane] += batch.inputs["ids"][lane][real].tolist()
            targets[lane] += batch.targets[lane][real].tolist()
    assert [*chain(*streams)] == flat[:-1]
    assert max(map(len, streams)) - min(map(len, streams)) <= 1
    expected = [IGNORE_INDEX if place in begins else token for place, token in enumerate(flat)][1:]
    assert [*chain(*targets)] == expected


def test_what_is_asked_is_what_packed_rows_ask():
    _, batches = windows(5, 3)
    packed = LanguageModel(5).samples(CORPUS, (BYTES, None))
    assert sum(batch.tokens for batch in batches) == packed.batch(range(len(packed))).tokens


def test_lengths_are_those_of_the_batches():
    samples, batches = windows(4, 3)
    plan = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams)
    for step, batch in zip(plan.in_order(), batches):
        longest = batch.inputs["ids"].shape[1]
        assert samples.lengths[step].max() == longest
        assert batch.inputs.get("padding", np.ones((samples.streams, longest))).sum() == samples.lengths[step].sum()


def test_an_epoch_is_the_same_each_time_and_a_place_in_it_is_reached_at_once():
    samples, _ = windows(4, 3)
    plan, place, seen = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams), Cursor(), []
    while place.epoch == 0:
        fresh = BatchSampler(samples.lengths, 4096, 1, samples.mixture, samples.streams).take(place)[0]
        step, place = plan.take(place)
        assert fresh.tolist() == step.tolist()
        seen += step.tolist()
    assert seen == list(range(len(samples)))
    assert place == Cursor(1)


def test_a_short_text_has_fewer_lanes():
    assert windows(200, 16)[0].streams == 1
    assert windows(20, 16)[0].streams == 3


def test_what_cannot_be_a_stream_is_refused():
    with pytest.raises(InputError, match=r"rows must be 1 or more, got 0 \(text\.problem\.rows\)"):
        TruncatedBPTT(rows=0)
    with pytest.raises(InputError, match=r"length = 0 leaves no room"):
        TruncatedBPTT(length=0)
    with pytest.raises(InputError, match=r"once an epoch \(text\.train\)\. Leave out the weights\."):
        TruncatedBPTT().samples(concatenate_corpora([(CORPUS, 2.0), (CORPUS, 1.0)]), (BYTES, None))

"""Classification and regression: labels, numbers, filtering; and what all labelled tasks share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.batching import BatchSampler
from regard.data.read.cache import Cache
from regard.data.read.corpus import Corpus, concatenate_corpora, read_corpus
from regard.data.read.texts import ReadOptions
from regard.data.tasks import Task
from regard.data.tasks.classification import Classification, Regression
from regard.data.tasks.contrastive import Contrastive
from regard.data.tasks.tagging import Tagging
from regard.data.tokenize.tokenizer import BOS, EOS, PAD, SpecialTokens, Tokenizer
from regard.data.tokenize.train import Character, train_tokenizers
from regard.errors import InputError
from regard.schema import from_dict, to_dict
from tests.data.rows import BYTE, labelled

SST = b"sentence\tlabel\r\na fine film\t1\r\ndull\t0\r\nso so\t0\r\ngreat\t1\r\n"
PAIRED = "id\tone\ttwo\tscore\n1\ta cat\ta dog\t2.5\n2\ttwo\tzwei\t5\n3\tx\t\t1\n4\tab\tcd\t-100\n"


@pytest.fixture(params=["memory", "cached"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache" if request.param == "cached" else None)


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_texts_of_a_named_column_have_labels(tmp_path: Path, cache: Cache) -> None:
    corpus = read_corpus(write(tmp_path / "sst.tsv", SST), ReadOptions(fields=("sentence", "label")), cache)
    task = Classification().with_labels_from(corpus)
    assert task.labels == ("0", "1")
    assert list(task.tokenizer_text(corpus).sources) == ["a fine film", "dull", "so so", "great"]
    assert task.tokenizer_text(corpus).targets is None
    samples = task.samples(corpus, (BYTE, None), cache)
    batch = samples.batch([3, 0, 1])
    assert batch.targets.tolist() == [1, 1, 0]
    assert batch.targets.dtype == torch.int64
    assert batch.samples == (3, 0, 1)
    assert set(batch.inputs) == {"ids", "padding"}
    rows = [row[mask].tolist() for row, mask in zip(batch.inputs["ids"], batch.inputs["padding"])]
    assert rows == [[BOS, *BYTE.encode(text), EOS] for text in ("great", "a fine film", "dull")]
    assert bool((batch.inputs["ids"][~batch.inputs["padding"]] == PAD).all())
    assert samples.lengths[:, 0].tolist() == [13, 6, 7, 7]
    assert samples.where([0, 3]) == f"{tmp_path}/sst.tsv:2, 5"
    assert samples.bytes == 25
    assert not samples.pairs


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_pairs_of_texts_fill_the_template_with_segments(tmp_path: Path, cache: Cache, form: str) -> None:
    if form == "tsv":
        content = PAIRED
    else:
        rows = [line.split("\t") for line in PAIRED.splitlines()[1:]]
        content = "".join(json.dumps({"one": r[1], "two": r[2], "score": float(r[3])}) + "\n" for r in rows)
    corpus = read_corpus(write(tmp_path / f"sts.{form}", content), ReadOptions(fields=("one", "two", "score")), cache)
    assert list(corpus.sources) == ["a cat\ta dog", "two\tzwei", "x\t", "ab\tcd"]
    assert corpus.paired_sources
    samples = Regression().samples(corpus, (BYTE, None), cache)
    assert samples.pairs
    assert samples.left_out.counts() == {"empty": 1}
    batch = samples.batch([0, 1, 2])
    assert batch.targets.dtype == torch.float32
    assert batch.targets.tolist() == pytest.approx([2.5, 5.0, -100.0])
    assert batch.tokens == 3, "a number that looks like IGNORE_INDEX is a number"
    expected = [[BOS, *BYTE.encode(a), EOS, *BYTE.encode(b), EOS] for a, b in (("a cat", "a dog"), ("two", "zwei"))]
    for row, ids in enumerate(expected):
        first = ids.index(EOS) + 1
        assert batch.inputs["ids"][row, : len(ids)].tolist() == ids
        segments = batch.inputs["segments"][row].tolist()
        assert segments == [0] * first + [1] * (len(ids) - first) + [0] * (len(segments) - len(ids))
        assert samples.lengths[row, 0] == len(ids)
    assert samples.where([2]) == f"{tmp_path}/sts.{form}:{5 if form == 'tsv' else 4}"


def test_columns_of_a_pair_need_not_be_neighbours(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path / "t.tsv", "b\tx\ta\n1\t2\t3\r\n")
    corpus = read_corpus(path, ReadOptions(fields=("3", "1", "2")), cache)
    assert list(zip(corpus.sources, corpus.targets or ())) == [("a\tb", "x"), ("3\r\t1", "2")]
    lines = write(tmp_path / "t.jsonl", '{"a": "x\\ty", "b": "z\\tw", "n": true}\n')
    corpus = read_corpus(lines, ReadOptions(fields=("a", "b", "n")), cache)
    assert (list(corpus.sources), list(corpus.targets or ())) == (["x y\tz\tw"], ["true"])


def test_a_tab_in_a_single_text_does_not_split_it(cache: Cache) -> None:
    samples = Classification().samples(labelled([("a\tb", "x"), ("c", "y")]), (BYTE, None), cache)
    assert not samples.pairs
    assert samples.batch([0]).inputs["ids"].tolist() == [[BOS, *BYTE.encode("a\tb"), EOS]]


def test_labels_are_sorted_and_numeric_labels_as_numbers() -> None:
    texts = [("a", label) for label in ("10", "9", "-1", "9", "10", "-1", " 9 ")]
    assert Classification().with_labels_from(labelled(texts)).labels == ("-1", "9", "10")
    assert Classification().with_labels_from(labelled([("a", "b10"), ("a", "b9"), ("a", "")])).labels == ("b10", "b9")
    given = Classification(labels=("no", "yes"))
    assert given.with_labels_from(labelled(texts)) == given
    assert from_dict(Task, to_dict(given), where="text.task") == given


def test_a_label_that_is_not_in_the_training_text_is_an_error(tmp_path: Path, cache: Cache) -> None:
    train = labelled([("a", "pos"), ("b", "neg")])
    valid = read_corpus(
        write(tmp_path / "v.tsv", "text\tlabel\na\tneg\nb\tpoz\n"), ReadOptions(fields=("text", "label")), cache
    )
    with pytest.raises(InputError) as caught:
        Classification().with_labels_from(train).samples(valid, (BYTE, None), cache)
    assert str(caught.value) == (
        f'{tmp_path}/v.tsv:3: the training text has no label "poz" (text.valid). Did you mean "pos"?'
    )


def test_the_wrong_column_is_not_taken_for_labels() -> None:
    texts = [("a", f"text {number}") for number in range(1500)]
    with pytest.raises(InputError, match=r"^t\.tsv has 1,001 different labels among the first 1,001 \(text\.fields\)"):
        Classification().with_labels_from(labelled(texts))
    with pytest.raises(InputError, match=r"has 15 different labels among the first 20"):
        Classification().with_labels_from(labelled([*texts[:15], *texts[:5]]))
    assert len(Classification().with_labels_from(labelled(texts[:15] * 2)).labels) == 15


def test_a_target_that_is_not_a_number_is_an_error(tmp_path: Path, cache: Cache) -> None:
    for wrong in ("high", "nan", "1e999", "1_0"):
        path = write(tmp_path / "t.tsv", f"text\tscore\na\t1\nb\t{wrong}\n")
        corpus = read_corpus(path, ReadOptions(fields=("text", "score")), cache)
        with pytest.raises(InputError) as caught:
            Regression().samples(corpus, (BYTE, None), cache)
        assert str(caught.value).startswith(f'{tmp_path}/t.tsv:3: "{wrong}" is no number (text.fields). ')


def test_whole_numbers_become_floats() -> None:
    batch = Regression().samples(labelled([("a", "1"), ("b", "2")]), (BYTE, None)).batch([0, 1])
    assert batch.targets.dtype == torch.float32
    assert batch.targets.tolist() == [1.0, 2.0]


def test_texts_that_are_left_out_are_counted(tmp_path: Path, cache: Cache) -> None:
    content = b"a\tx\n\tx\n \tx\nb\t\n\xff\tx\nabcdef\ty\nabc\tx\n"
    corpus = read_corpus(write(tmp_path / "t.tsv", content), ReadOptions(bad_utf8="skip"), cache)
    samples = Classification(max_length=7).samples(corpus, (BYTE, None), cache)
    assert samples.left_out.counts() == {"not UTF-8": 1, "empty": 3, "longer than 7 tokens": 1}
    assert samples.where(range(len(samples))) == f"{tmp_path}/t.tsv:1, 7"
    with pytest.raises(InputError, match=r"has 0 usable lines of 7"):
        Classification(max_length=3).samples(Corpus(["ab"] * 7, ["x"] * 7, ("t",)), (BYTE, None))


def test_a_pair_may_be_exactly_as_long_as_allowed() -> None:
    corpus = Corpus(["ab\tcd", "ab\tcde"], ["1", "2"], ("t",), paired_sources=True)
    samples = Regression(max_length=7).samples(corpus, (BYTE, None))
    assert samples.left_out.counts() == {"longer than 7 tokens": 1}
    assert samples.lengths.tolist() == [[7]] == [[samples.batch([0]).inputs["ids"].shape[1]]]


def test_several_corpora_keep_their_weights_and_lines(tmp_path: Path, cache: Cache) -> None:
    reading = ReadOptions(fields=("sentence", "label"))
    first = read_corpus(write(tmp_path / "a.tsv", SST), reading, cache)
    second = read_corpus(write(tmp_path / "b.tsv", "label\tsentence\n1\tgood\n"), reading, cache)
    both = concatenate_corpora([(first, 1.0), (second, 3.0)])
    samples = Classification().samples(both, (BYTE, None), cache)
    assert [(share.samples, share.weight) for share in samples.mixture] == [(4, 1.0), (1, 3.0)]
    assert samples.where([3, 4]) == f"{tmp_path}/a.tsv:5; {tmp_path}/b.tsv:2"
    pairs = Corpus(["a\tb"], ["1"], ("p",), paired_sources=True)
    with pytest.raises(InputError, match="pairs of texts, others are not"):
        concatenate_corpora([(first, 1.0), (pairs, 1.0)])


def test_batches_of_labelled_samples_stay_in_the_budget() -> None:
    lines = [("a" * (1 + number % 17), "b" * (1 + number % 11)) for number in range(200)]
    for task in (Contrastive(), Classification(labels=tuple("b" * n for n in range(1, 12)))):
        samples = task.samples(labelled(lines), (BYTE, None))
        for step in BatchSampler(samples.lengths, 200, 1, samples.mixture).epoch(0):
            assert samples.batch(step, 1).inputs["ids"].numel() <= 200


def test_no_indices_give_an_empty_batch() -> None:
    corpus = labelled([("a", "1"), ("b", "2")])
    for task in (Classification(), Regression(), Tagging(), Contrastive()):
        batch = task.samples(corpus, (BYTE, None)).batch(np.zeros(0, np.int64))
        assert batch.tokens == 0
        assert batch.samples == ()


def test_text_without_targets_and_other_misuse_is_refused() -> None:
    plain, corpus = Corpus(["a"], None, ("t.txt",)), labelled([("a", "1"), ("b", "1")])
    for task in (Classification(), Regression(), Tagging(), Contrastive()):
        with pytest.raises(InputError, match=r"^t\.txt has one column \(text\.train\)"):
            task.samples(plain, (BYTE, None))
        with pytest.raises(InputError, match=r"text\.bpe_dropout"):
            task.samples(corpus, (BYTE, None), bpe_dropout=0.1)
        with pytest.raises(InputError, match=r"text\.task\.max_length"):
            type(task)(2)
    with pytest.raises(InputError, match="joint = true"):
        Contrastive().samples(corpus, train_tokenizers(Character(joint=False), corpus))
    assert Contrastive().tokenizer_text(corpus) is corpus
    assert Contrastive().with_labels_from(corpus) == Contrastive()


def test_a_tokenizer_may_put_two_separators_between_the_texts_of_a_pair():
    plain = Character().train(["ab"])
    apart_pieces = (BOS, 0), (-1, 0), (EOS, 0), (EOS, 0), (-2, 1), (EOS, 1)
    apart = Tokenizer.from_json(plain.to_json(), SpecialTokens(single=((BOS, 0), (-1, 0), (EOS, 0)), pair=apart_pieces))
    a, b = plain.encode("ab")
    corpus = Corpus(["ab\tb", "a\tab"], ["x", "y"], ("pairs.tsv",), paired_sources=True)
    for tokenizer, between in ((plain, [plain.eos]), (apart, 2 * [plain.eos])):
        samples = Classification(max_length=8).samples(corpus, (tokenizer, None))
        batch = samples.batch([0, 1])
        assert batch.inputs["ids"].tolist() == [
            [plain.bos, a, b, *between, b, plain.eos],
            [plain.bos, a, *between, a, b, plain.eos],
        ]
        assert samples.lengths.tolist() == [[5 + len(between)], [5 + len(between)]]
        assert batch.inputs["segments"][0].tolist() == [0, 0, 0, *[0 for _ in between], 1, 1]

"""Published folders of every kind, head and tokenizer form, and what the pipelines of transformers make of texts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import transformers as t
from tokenizers import processors

import regard
from regard.api import LoadedModel
from regard.data.tasks.masked_lm import ordinary_tokens
from regard.data.tokenize.tokenizer import word_ids, word_offsets
from regard.decode.classify import NO_TAG, LabelPrediction, NumberPrediction, TagPrediction
from regard.decode.fill import fill_spans
from regard.decode.options import Options
from tests.parity.folders import perturbed
from tests.store.test_tokenizers import (
    LINES,
    write_byte_level_bpe,
    write_json,
    write_marian,
    write_sentencepiece,
    write_wordpiece,
)

NAMES = {"id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {"bad": 0, "so so": 1, "good": 2}}
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LONGEST = 500  # tokens that the models read
TOLERANCE = 2e-5

Write = Callable[[Path], None]


def lines(count: int, seed: int = 5) -> list[str]:
    """Texts of one word to some forty, in several scripts, some almost empty, some long."""
    chance = random.Random(seed)
    words = [*" ".join(LINES[:6]).replace("\n", " ").split(), "東京", "don't", "👩‍👧", "é", "e\u0301", "İ", "ß",
             "x" * 30, "½", "a\u200bb", "Ａ", "...", "(no)", "12,5", "\u00a0", "UPPER", "ﬁn"]  # fmt: skip
    texts = ["a", ".", "The early bird", " leading", "trailing ", "two  spaces", "東京", "?!", "É", "a\tb"]
    while len(texts) < count:
        texts.append(" ".join(chance.choices(words, k=chance.choice([1, 2, 3, 5, 8, 13]))))
    return texts[:count]


# Tokenizers


def config(folder: Path, **settings: Any) -> None:
    path = folder / "tokenizer_config.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    write_json(path, {key: value for key, value in {**old, **settings}.items() if value is not None})


def form(write: Write, **settings: Any) -> Write:
    """The files of the first libraries, with these settings."""

    def both(folder: Path) -> None:
        write(folder)
        if settings:
            config(folder, **settings)

    return both


def saved(name: str, write: Write, *, post: str | None = "own", **settings: Any) -> Write:
    """tokenizer.json alone; `post` is its post-processor: "own", None, or a template around $A."""

    def one(folder: Path) -> None:
        files = folder / "files"
        files.mkdir()
        write(files)
        made = getattr(t, name).from_pretrained(files)
        made.save_pretrained(folder)
        plain = json.loads((folder / "tokenizer.json").read_text())
        if post is None:
            plain["post_processor"] = None
        elif post != "own":
            tokens = [(word, made.convert_tokens_to_ids(word)) for word in post.split() if word != "$A"]
            template = processors.TemplateProcessing(post, f"{post} $B:1", tokens)
            library = made.backend_tokenizer
            library.post_processor = template
            plain["post_processor"] = json.loads(library.to_str())["post_processor"]
        write_json(folder / "tokenizer.json", plain)
        config(folder, **settings)
        for path in files.iterdir():
            path.unlink()
        files.rmdir()

    return one


def merges(*specials: str) -> Write:
    return lambda folder: write_byte_level_bpe(folder, list(specials))


def spiece(name: str, size: int = 220, **settings: Any) -> Write:
    return lambda folder: write_sentencepiece(folder / name, size, **settings)


BARE = {"tokenizer_class": "PreTrainedTokenizerFast"}
GPT2_FILES, ROBERTA_FILES = merges("<|endoftext|>"), merges(*ROBERTA)
T5_FILES = spiece("spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
XLM_FILES = spiece("sentencepiece.bpe.model", unk_id=0, bos_id=1, eos_id=2)
_REFORMER_FILES: dict[str, Any] = {"model_type": "bpe", "unk_id": 2, "eos_id": 1, "bos_id": -1, "pad_id": 0}
REFORMER_FILES = spiece("spiece.model", **_REFORMER_FILES)
ALBERT_FILES = spiece("spiece.model", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
                      control_symbols=["[CLS]", "[SEP]", "[MASK]"])  # fmt: skip


def m2m100_files(folder: Path) -> None:
    """vocab.json beside the SentencePiece model; the codes of languages are in neither."""
    XLM_FILES(folder)
    model = sentencepiece.SentencePieceProcessor(str(folder / "sentencepiece.bpe.model"))
    pieces = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    write_json(folder / "vocab.json", {token: number for number, token in enumerate(tokens)})


def llama_files(folder: Path) -> None:
    """Llama's BPE of characters and bytes, with a token before every text."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted({letter for line in LINES[:5] for letter in line.replace(" ", "▁")})
    words = ["▁t", "he", "▁the", "er", "ir", "▁b", "▁bir", "▁bird"]
    vocabulary = {token: number for number, token in enumerate(["<unk>", "<s>", "</s>", *bytes_, *letters, *words])}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("e", "r"), ("i", "r"), ("▁", "b"), ("▁b", "ir"), ("▁bir", "d")]
    t.LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True).save_pretrained(folder)


MASKED_FILES = spiece("spiece.model", **_REFORMER_FILES, user_defined_symbols=["<mask>"])

BERT_FORMS = {
    "vocab.txt": form(write_wordpiece),
    "vocab.txt, cased": form(write_wordpiece, do_lower_case=False, model_max_length=64),
    "json": saved("BertTokenizer", write_wordpiece),
    "json, cased by its settings": saved("BertTokenizer", write_wordpiece, do_lower_case=False),
    "json, no post-processor": saved("BertTokenizer", write_wordpiece, post=None),
    "json, no post-processor, no class": saved("BertTokenizer", write_wordpiece, post=None, **BARE),
    "json, own template, no class": saved("BertTokenizer", write_wordpiece, post="[CLS] $A", **BARE),
    "json, own template and segments": saved("BertTokenizer", write_wordpiece, post="$A [SEP]", **BARE,
                                             model_input_names=["input_ids", "token_type_ids", "attention_mask"]),
}  # fmt: skip
ROBERTA_FORMS = {
    "merges": form(ROBERTA_FILES),
    "merges, space before": form(ROBERTA_FILES, add_prefix_space=True),
    "json": saved("RobertaTokenizer", ROBERTA_FILES),
    "json, space before by its settings": saved("RobertaTokenizer", ROBERTA_FILES, add_prefix_space=True),
    "json, no post-processor, no class": saved("RobertaTokenizer", ROBERTA_FILES, post=None, **BARE),
}
GPT2_FORMS = {
    "merges": form(GPT2_FILES),
    "merges, begin": form(GPT2_FILES, add_bos_token=True),
    "merges, end": form(GPT2_FILES, add_eos_token=True),
    "merges, begin, end and space": form(GPT2_FILES, add_bos_token=True, add_eos_token=True, add_prefix_space=True),
    "json": saved("GPT2Tokenizer", GPT2_FILES),
    "json, begin only in settings": saved("GPT2Tokenizer", GPT2_FILES, add_bos_token=True),
    "json, own template": saved("GPT2Tokenizer", GPT2_FILES, post="<|endoftext|> $A"),
    "json, no class": saved("GPT2Tokenizer", GPT2_FILES, post=None, **BARE),
}
T5_FORMS = {
    "spiece.model": form(T5_FILES),
    "spiece.model, 5 sentinels": form(T5_FILES, extra_ids=5),
    "json": saved("T5Tokenizer", T5_FILES),
    "json, no post-processor, no class": saved("T5Tokenizer", T5_FILES, post=None, **BARE),
}
FORMS: dict[str, dict[str, Write]] = {
    "bert": BERT_FORMS,
    "distilbert": BERT_FORMS,
    "roberta": ROBERTA_FORMS,
    "xlm-roberta": {
        "sentencepiece.bpe.model": form(XLM_FILES),
        "json": saved("XLMRobertaTokenizer", XLM_FILES),
        "json, no post-processor, no class": saved("XLMRobertaTokenizer", XLM_FILES, post=None, **BARE),
    },
    "camembert": {
        "sentencepiece.bpe.model": form(XLM_FILES, tokenizer_class="CamembertTokenizer"),
        "json": saved("CamembertTokenizer", XLM_FILES),
    },
    "gpt2": GPT2_FORMS,
    "t5": T5_FORMS,
    "mt5": {"spiece.model": form(T5_FILES, extra_ids=0), "json": saved("T5Tokenizer", T5_FILES)},
    "marian": {"spm": write_marian, "spm, separate": lambda folder: write_marian(folder, separate=True)},
    "electra": {name: BERT_FORMS[name] for name in ("vocab.txt", "json, own template, no class")},
    "albert": {
        "spiece.model": form(ALBERT_FILES),
        "spiece.model, cased": form(ALBERT_FILES, do_lower_case=False, keep_accents=True),
        "json": saved("AlbertTokenizer", ALBERT_FILES),
    },
    "bart": {name: ROBERTA_FORMS[name] for name in ("merges", "json")},
    "mbart": {
        "sentencepiece.bpe.model": form(XLM_FILES, tokenizer_class="MBartTokenizer", src_lang="de_DE"),
        "mBART-50": form(XLM_FILES, tokenizer_class="MBart50Tokenizer", src_lang="ro_RO", tgt_lang="fr_XX"),
        "json": saved("MBartTokenizer", XLM_FILES),
    },
    "m2m_100": {
        "vocab.json": form(m2m100_files, tokenizer_class="M2M100Tokenizer", src_lang="de", tgt_lang="fr"),
    },
    "llama": {"json": llama_files},
    "mistral": {"json": llama_files},
    "qwen2": {"json": saved("Qwen2Tokenizer", GPT2_FILES)},
    "modernbert": {
        "json, no class": saved("RobertaTokenizer", ROBERTA_FILES, post="<s> $A </s>", **BARE),
        "json, own template, no class": BERT_FORMS["json, own template, no class"],
    },
    "reformer": {"spiece.model": form(REFORMER_FILES), "json": saved("ReformerTokenizer", REFORMER_FILES)},
}
# The published tokenizer of Reformer has no mask token, without which neither library fills one.
MASKED_REFORMER = {
    "spiece.model": form(MASKED_FILES, mask_token="<mask>"),
    "json": saved("ReformerTokenizer", form(MASKED_FILES, mask_token="<mask>")),
}

# Models

_SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 36,
          "max_position_embeddings": LONGEST + 2, "type_vocab_size": 2}  # fmt: skip
_T5 = {"d_model": 24, "num_layers": 2, "num_heads": 3, "d_ff": 36, "d_kv": 8, "decoder_start_token_id": 0}
_MARIAN = {"d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3,
           "decoder_attention_heads": 3, "encoder_ffn_dim": 36, "decoder_ffn_dim": 36,
           "max_position_embeddings": LONGEST, "eos_token_id": 0, "forced_eos_token_id": 0}  # fmt: skip
_REFORMER = {"hidden_size": 24, "attention_head_size": 8, "num_attention_heads": 3, "attn_layers": ["local", "lsh"],
             "axial_pos_shape": [16, 32], "axial_pos_embds_dim": [8, 16], "feed_forward_size": 36,
             "max_position_embeddings": 512, "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4,
             "num_buckets": 4, "num_hashes": 2, "hash_seed": 1}  # fmt: skip
_GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": LONGEST}
_BART = {**_MARIAN, "decoder_start_token_id": 2, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1,
         "forced_eos_token_id": 2}  # fmt: skip
_LLAMA = {"hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6,
          "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_DISTILBERT = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 36, "max_position_embeddings": LONGEST}

CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", _SMALL),
    "distilbert": ("DistilBert", _DISTILBERT),
    "roberta": ("Roberta", {**_SMALL, "pad_token_id": 1}),
    "xlm-roberta": ("XLMRoberta", {**_SMALL, "pad_token_id": 1, "type_vocab_size": 1}),
    "camembert": ("Camembert", {**_SMALL, "pad_token_id": 1, "type_vocab_size": 1}),
    "gpt2": ("GPT2", _GPT2),
    "t5": ("T5", _T5),
    "mt5": ("MT5", _T5),
    "marian": ("Marian", _MARIAN),
    "reformer": ("Reformer", _REFORMER),
    "electra": ("Electra", {**_SMALL, "embedding_size": 16}),
    "albert": ("Albert", {**_SMALL, "embedding_size": 16}),
    "bart": ("Bart", {**_BART, "forced_bos_token_id": 0}),
    "mbart": ("MBart", _BART),
    "m2m_100": ("M2M100", _BART),
    "llama": ("Llama", _LLAMA),
    "mistral": ("Mistral", {**_LLAMA, "sliding_window": 7}),
    "qwen2": ("Qwen2", {**_LLAMA, "bos_token_id": None, "eos_token_id": 0, "tie_word_embeddings": True}),
}
CLASSES["modernbert"] = ("ModernBert", {
    "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 4, "num_attention_heads": 3, "local_attention": 6,
    "pad_token_id": 0, "cls_token_id": 0, "sep_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "norm_eps": 1e-3,
})  # fmt: skip
_REGRESSION = "ForSequenceClassification, one number"
_ENCODER_HEADS = ("ForMaskedLM", "Model", "ForSequenceClassification", "ForTokenClassification",
                  "ForQuestionAnswering", _REGRESSION)  # fmt: skip
HEADS: dict[str, tuple[str, ...]] = {
    "bert": (*_ENCODER_HEADS, "ForPreTraining", "ForNextSentencePrediction"),
    **dict.fromkeys(("distilbert", "roberta", "xlm-roberta", "camembert"), _ENCODER_HEADS),
    "gpt2": ("LMHeadModel", "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
             _REGRESSION),
    "t5": ("ForConditionalGeneration", "EncoderModel"),
    "mt5": ("ForConditionalGeneration", "EncoderModel"),
    "marian": ("MTModel",),
    "electra": ("ForMaskedLM", "Model", "ForSequenceClassification", "ForTokenClassification"),
    "albert": ("ForMaskedLM", "Model", "ForSequenceClassification", "ForTokenClassification"),
    **dict.fromkeys(("bart", "mbart", "m2m_100"), ("ForConditionalGeneration",)),
    **dict.fromkeys(("llama", "mistral", "qwen2"), ("ForCausalLM", "ForSequenceClassification")),
    "modernbert": ("ForMaskedLM", "Model"),
    "reformer": ("ModelWithLMHead", "Model", "ForMaskedLM", "ForQuestionAnswering"),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A published folder: a model type, a head and a tokenizer form."""

    kind: str
    head: str
    form: str

    def __str__(self) -> str:
        return f"{self.kind} {self.head}, {self.form}"

    def write(self, folder: Path) -> Path:
        """Write the folder with random weights."""
        folder.mkdir(parents=True, exist_ok=True)
        prefix, settings = CLASSES[self.kind]
        # transformers finds the tokenizer's class by the model's type
        write_json(folder / "config.json", {"model_type": self.kind})
        forms = MASKED_REFORMER if (self.kind, self.head) == ("reformer", "ForMaskedLM") else FORMS[self.kind]
        forms[self.form](folder)
        tokenizer = t.AutoTokenizer.from_pretrained(folder)
        size = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values()))
        if self.kind == "m2m_100":
            size = len(json.loads((folder / "vocab.json").read_text())) + len(tokenizer.lang_code_to_id)
        if self.kind == "gpt2":
            settings = {**settings, "bos_token_id": 0, "eos_token_id": 0}
        if self.kind == "marian":
            target = json.loads((folder / "target_vocab.json").read_text()) if "separate" in self.form else None
            separate = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": len(target or ())}
            size = len(json.loads((folder / "vocab.json").read_text()))
            last = len(target) - 1 if target else size - 1
            settings = {**settings, **(separate if target else {})}
            settings |= {"decoder_start_token_id": last, "pad_token_id": last, "bad_words_ids": [[last]]}
        if self.kind == "reformer":
            settings = {**settings, "is_decoder": self.head == "ModelWithLMHead", "eos_token_id": 1, "pad_token_id": 0}
        names: dict[str, Any] = NAMES if self.head in ("ForSequenceClassification", "ForTokenClassification") else {}
        names = {"num_labels": 1} if self.head == _REGRESSION else names
        of_model = getattr(t, f"{prefix}Config")(vocab_size=size, **settings, **names)
        torch.manual_seed(1)
        model = perturbed(getattr(t, f"{prefix}{self.head.partition(',')[0]}")(of_model), by=0.35)
        if self.kind == "reformer" and hasattr(model, "lm_head"):
            model.lm_head.bias.data.zero_()
        model.save_pretrained(folder)
        return folder


CASES = [Case(kind, head, name) for kind, heads in HEADS.items() for head in heads for name in FORMS[kind]]


# Comparisons: each yields, per text, whether the two agree


def close(ours: Any, theirs: Any) -> bool:
    ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    return ours.shape == theirs.shape and bool((abs(ours - theirs) <= TOLERANCE * max(1.0, abs(theirs).max())).all())


def compare_labels(folder: Path, model: LoadedModel, texts: Sequence[str]) -> Iterator[bool]:
    """Single texts and pairs, all probabilities."""
    pipe = t.pipeline("text-classification", model=str(folder), top_k=None, device="cpu")
    pairs = list(zip(texts, reversed(texts)))
    given: list[Any] = [*texts, *({"text": one, "text_pair": other} for one, other in pairs)]
    for found, expected in zip([*model.classify(list(texts)), *model.classify(pairs)], map(pipe, given)):
        assert isinstance(found, LabelPrediction)
        rows = expected[0] if isinstance(expected[0], list) else expected
        wanted = {row["label"]: row["score"] for row in rows}
        same = close([found.probabilities[name] for name in wanted], list(wanted.values()))
        first, second = sorted(wanted.values(), reverse=True)[:2]
        yield same and (found.label == max(wanted, key=wanted.__getitem__) or first - second < TOLERANCE)


def compare_next_sentences(folder: Path, model: LoadedModel, texts: Sequence[str]) -> Iterator[bool]:
    theirs, tokenizer = t.BertForNextSentencePrediction.from_pretrained(folder), t.AutoTokenizer.from_pretrained(folder)
    pairs = list(zip(texts, reversed(texts)))
    for found, pair in zip(model.classify(pairs), pairs):
        assert isinstance(found, LabelPrediction)
        with torch.no_grad():
            logits = theirs(**tokenizer(*pair, return_tensors="pt")).logits[0]
        yield close(list(found.probabilities.values()), logits.softmax(-1))


def compare_tags(folder: Path, model: LoadedModel, texts: Sequence[str]) -> Iterator[bool]:
    """The tag of each word is that of its first token."""
    pipe = t.pipeline("token-classification", model=str(folder), ignore_labels=[], device="cpu")
    for text, found in zip(texts, model.classify(list(texts))):
        assert isinstance(found, TagPrediction)
        if len(pipe.tokenizer(text)["input_ids"]) > pipe.tokenizer.model_max_length:
            continue  # this pipeline alone cuts long texts off
        tokens = pipe(text)
        words = word_ids(text, [(token["start"], token["end"]) for token in tokens])
        first = {word: token["entity"] for word, token in reversed([*zip(words, tokens)])}
        yield found.tags == tuple(first.get(word, NO_TAG) for word in range(len(word_offsets(text))))


def compare_numbers(folder: Path, model: LoadedModel, texts: Sequence[str]) -> Iterator[bool]:
    """The number itself: without `problem_type` in config.json, the pipeline squeezes it through a sigmoid."""
    pipe = t.pipeline("text-classification", model=str(folder), function_to_apply="none", device="cpu")
    pairs = list(zip(texts, reversed(texts)))
    given: list[Any] = [*texts, *({"text": one, "text_pair": other} for one, other in pairs)]
    for found, expected in zip([*model.classify(list(texts)), *model.classify(pairs)], map(pipe, given)):
        assert isinstance(found, NumberPrediction)
        yield close(found.number, (expected[0] if isinstance(expected, list) else expected)["score"])


def compare_answers(folder: Path, model: LoadedModel, texts: Sequence[str]) -> Iterator[bool]:
    """Whether the first token of each word rather begins or ends an answer; transformers 5 has no pipeline for this."""
    theirs = t.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = t.AutoTokenizer.from_pretrained(folder)
    for text, found in zip(texts, model.classify(list(texts))):
        assert isinstance(found, TagPrediction)
        given = tokenizer(text, return_tensors="pt", return_offsets_mapping=True, return_special_tokens_mask=True)
        offsets, special = given.pop("offset_mapping")[0].tolist(), given.pop("special_tokens_mask")[0].tolist()
        with torch.no_grad():
            output = theirs(**given)
        ends = (output.end_logits > output.start_logits)[0].tolist()
        rows = [(span, end) for span, end, extra in zip(offsets, ends, special) if not extra]
        words = word_ids(text, [(start, stop) for (start, stop), _ in rows])
        first = {word: ("start", "end")[end] for word, (_, end) in reversed([*zip(words, rows)])}
        yield found.tags == tuple(first.get(word, NO_TAG) for word in range(len(word_offsets(text))))


def compare_vectors(folder: Path, model: LoadedModel, texts: Sequence[str]) -> Iterator[bool]:
    """Vectors of tokens and their mean."""
    tokenizer = t.AutoTokenizer.from_pretrained(folder)
    if model.shape == "encoder-decoder":
        whole = t.AutoModelForSeq2SeqLM.from_pretrained(folder)
        body = whole.get_encoder()
    else:
        body = t.T5EncoderModel if "EncoderModel" in str(model.config["architectures"]) else t.AutoModel
        body = (t.MT5EncoderModel if model.config["model_type"] == "mt5" else body).from_pretrained(folder)
    pipe = t.pipeline("feature-extraction", model=body.eval(), tokenizer=tokenizer, device="cpu")
    means = model.embed(texts, pool="mean")
    for text, mean, (_, vectors) in zip(texts, means, model.embed(texts, tokens=True)):
        expected = np.array(pipe(text)[0])
        yield close(vectors, expected) and close(mean, expected.mean(0))


def compare_fills(folder: Path, model: LoadedModel, texts: Sequence[str]) -> Iterator[bool]:
    """The five best tokens for a mask among ordinary ones, with their probabilities."""
    pipe = t.pipeline("fill-mask", model=str(folder), top_k=30, device="cpu")
    mask, ordinary = pipe.tokenizer.mask_token, ordinary_tokens(model.tokenizer)
    # A spiece.model of Reformer removes the space before a mask, which transformers 5 keeps.
    space = "" if model.config["model_type"] == "reformer" else " "
    halves = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in texts]
    masked = [f"{one if space else one.strip()}{space}{mask} {other}" for one, other in halves]
    for found, rows in zip(model.fill(masked), map(pipe, masked)):
        ours = {fill.tokens[0]: fill.probability for fill in found.masks[0]}
        theirs = {row["token"]: row["score"] for row in rows}
        best = sorted((row["score"] for row in rows if ordinary[row["token"]]), reverse=True)
        same = close(list(ours.values()), [theirs.get(token, -1.0) for token in ours])
        yield same and close(list(ours.values()), best[:5])


def compare_spans(folder: Path, model: LoadedModel, texts: Sequence[str]) -> Iterator[bool]:
    """T5's span for the sentinel in the middle of a text, and its probability."""
    theirs, tokenizer = t.AutoModelForSeq2SeqLM.from_pretrained(folder), t.AutoTokenizer.from_pretrained(folder)
    sentinel = tokenizer.convert_tokens_to_ids("<extra_id_0>")
    ends = {number for token, number in tokenizer.get_vocab().items() if token.startswith("<extra_id_")}
    ends.add(tokenizer.eos_token_id)
    masked = [f"{text[: len(text) // 2]} <extra_id_0> {text[len(text) // 2 :]}" for text in texts]
    for text, found in zip(masked, fill_spans(model.network, model.tokenizers, masked, Options(max_tokens=8), top=1)):
        given, begin = tokenizer(text, return_tensors="pt"), [theirs.config.decoder_start_token_id, sentinel]
        made = theirs.generate(**given, decoder_input_ids=torch.tensor([begin]), max_new_tokens=8, do_sample=False)
        written = made[0, 2:].tolist()
        span = tuple(token for token in written[: next((n for n, one in enumerate(written) if one in ends), 8)])
        with torch.no_grad():
            logits = theirs(**given, decoder_input_ids=made[:, :-1]).logits[0, 1:].log_softmax(-1)
        counted = written[: len(span) + 1]  # with the token that ends it
        probability = sum(logits[place, token].item() for place, token in enumerate(counted))
        yield found.masks[0][0].tokens == span and close(found.masks[0][0].probability, np.exp(probability))


def compare_generations(folder: Path, model: LoadedModel, texts: Sequence[str]) -> Iterator[bool]:
    pipe = t.pipeline("text-generation", model=str(folder), device="cpu")
    options = replace(model.defaults(), temperature=0.0, max_tokens=8)
    cached = model.config["model_type"] != "reformer"
    for text, found in zip(texts, model.continuations(texts, options)):
        expected = pipe(text, max_new_tokens=8, do_sample=False, return_full_text=False, use_cache=cached)
        yield model.tokenizer.decode(found[0].tokens) == expected[0]["generated_text"]


def compare_translations(folder: Path, model: LoadedModel, texts: Sequence[str]) -> Iterator[bool]:
    theirs, tokenizer = t.AutoModelForSeq2SeqLM.from_pretrained(folder), t.AutoTokenizer.from_pretrained(folder)
    inputs = [tokenizer(text, return_tensors="pt") for text in texts]
    target = getattr(tokenizer, "tgt_lang", None)  # which the pipeline for translation makes the first token
    if target is not None:
        codes = getattr(tokenizer, "lang_code_to_id", {})
        inputs = [{**given, "forced_bos_token_id": codes[target]} for given in inputs]
    if hasattr(tokenizer, "_switch_to_target_mode"):
        tokenizer._switch_to_target_mode()
    for beam in (1, 3):
        options = replace(model.defaults(), max_tokens=12, beam=beam)
        for given, found in zip(inputs, model.translations(texts, options)):
            expected = theirs.generate(**given, max_new_tokens=12, num_beams=beam)
            text = tokenizer.decode(expected[0], skip_special_tokens=True)
            text = re.sub(r"__\w+?__", "", text)  # codes of languages, which M2M100 shows
            # With separate vocabularies, transformers does not know the padding of the target.
            yield found[0].text.strip() == text.replace("<pad>", "").strip()


Compare = Callable[[Path, LoadedModel, Sequence[str]], Iterator[bool]]
COMPARISONS: dict[str, tuple[Compare, ...]] = {
    "ForMaskedLM": (compare_fills,),
    "ForPreTraining": (compare_fills,),
    "Model": (compare_vectors,),
    "EncoderModel": (compare_vectors,),
    "ForSequenceClassification": (compare_labels, compare_vectors),
    _REGRESSION: (compare_numbers, compare_vectors),
    "ForTokenClassification": (compare_tags,),
    "ForQuestionAnswering": (compare_answers,),
    "ForNextSentencePrediction": (compare_next_sentences,),
    "LMHeadModel": (compare_generations, compare_vectors),
    "ForCausalLM": (compare_generations, compare_vectors),
    "ModelWithLMHead": (compare_generations,),
    "ForConditionalGeneration": (compare_translations, compare_vectors),
    "MTModel": (compare_translations, compare_vectors),
}


def run(case: Case, folder: Path, texts: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """-> per comparison its name, how many texts agree, and of how many."""
    model = regard.load(case.write(folder))
    if case.kind == "reformer" or case.form == "mBART-50":  # spaces at the end, which SentencePiece removes
        texts = [text.strip() for text in texts]
    fitting = [text for text in texts if 0 < len(model.tokenizer.encode(text)) < LONGEST // 2 - 10]
    spans = (compare_spans,) if case.head == "ForConditionalGeneration" and model.tokenizer.sentinels else ()
    for compare in (*COMPARISONS[case.head], *spans):
        found = list(compare(folder, model, fitting))
        yield compare.__name__, sum(found), len(found)

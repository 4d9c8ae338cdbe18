"""Safety of a tokenizer.json: only rules that neither hang on some text nor make it very long are run."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import models

from regard import messages

_MAX_STEPS = 100  # rules that a text passes through
_MAX_BOUND = 10_000  # growth of a text, as the rules alone bound it
_MAX_GROWTH = 50  # growth of a probe, as measured; real ones reach 11 (NFKC) times 2 (bytes)
_MAX_WORD = 1000  # characters of a word that WordPiece segments, in quadratic time
_MAX_TOKEN = 10_000  # characters of a token, or of what is added to the parts of a word
_PROBES = "aAzZ019 .,'\"-_\n\t▁Ġéİßñ½中あ한ﷺ😀\u0301\u00a0\u1d1c0"

# The most bytes that a rule makes of one; the others make no text longer. U+FDFA has 11 times as many bytes in NFKC.
_GROWTH = {
    "NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 1.5, "BertNormalizer": 5, "ByteLevel": 2, "Metaspace": 6,
    None: 5,  # old files have rules without a type
}  # fmt: skip

# A safe pattern is an alternation of branches. A branch is a sequence of characters, a few of them optional, and one
# group of fixed words; only its end may repeat, so a match can fail only before anything repeats, and no character is
# read twice.
_CLASS = r"\[\^?(?:\\[pP]\{\^?\w+\}|\\[^\dpP]|[^\[\]\\&])+\]"
# Of the escapes with a letter only those of one character: \y, for one, looks at all characters before it.
_ONE = rf"(?:{_CLASS}|\\[pP]\{{\^?\w+\}}|\\[sSdDwWhHnrtfvux]|\\[^\w\s]|[^\\()\[\]{{}}|*+?^$])"
_FIXED = rf"(?:{_ONE}(?![?*+{{]))*"
_WORDS = rf"\(\?i?:{_ONE}+(?:\|{_ONE}+)*\)\??"
_REPEATED = rf"{_ONE}(?:[*+]|\{{\d{{1,2}}(?:,\d*)?\}})(?:{_ONE}\*)*"
# These backtrack by one character, or over spaces that the next branch takes.
_SPACES = r"\\s(?:\+|\{\d{1,2},\d*\})\(\?!\\S\)|\\s\*\[\\r\\n\]\+"
_BRANCH = rf"(?:{_SPACES}|\^?{_FIXED}(?:{_ONE}\?{_FIXED}){{0,4}}(?:{_WORDS}{_FIXED})?(?:{_REPEATED}|\$)?)"
_SAFE = re.compile(rf"{_BRANCH}(?:\|{_BRANCH})*")

Rule = dict[str, Any]


def require_safe_rules(text: str) -> None:
    """Refuse a tokenizer.json whose rules some text would keep busy for hours, or that would fill the memory.

    This comes before the library reads the file, because it applies the normalizer to added tokens at once.
    """
    plain = _object(json.loads(text))
    _require_safe_steps([plain.get(name) for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")])


def require_safe(tokenizer: tokenizers.Tokenizer) -> None:
    """Refuse a tokenizer whose rules, as the library reads them, or whose model are not safe."""
    steps = tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder, tokenizer.post_processor
    _require_safe_steps([None if step is None else json.loads(step.__getstate__()) for step in steps])
    _require_safe_model(tokenizer)
    _require_growth(max(_measured(tokenizer, probe) for probe in _probes(tokenizer)), _MAX_GROWTH)


def _require_safe_steps(steps: Sequence[Rule | None]) -> None:
    """Check normalizer, pre-tokenizer, decoder and post-processor; a text passes through the first two."""
    for several in (steps[:2], steps[2:3], steps[3:]):
        rules = [rule for step in several if step is not None for rule in _rules(step)]
        if len(rules) > _MAX_STEPS:
            raise messages.BAD_TOKENIZER(why=f"it has {len(rules):,} rules, the most that is run is {_MAX_STEPS}")
        for rule in rules:
            _require_safe_rule(rule)
        _require_growth(math.prod(map(_growth, rules)), _MAX_BOUND)


def _rules(plain: Rule) -> Iterator[Rule]:
    """The rules of a step: the step itself, or those of a sequence."""
    keys = "normalizers", "pretokenizers", "decoders", "processors"
    inner = [rule for key in keys for rule in _object(plain).get(key, ())]
    for rule in inner:
        yield from _rules(rule)
    if not inner:
        yield plain


def _object(plain: Any) -> Rule:
    if not isinstance(plain, dict):
        raise messages.BAD_TOKENIZER(why=f"{str(plain)[:20]!r} is not an object")
    return plain


def _require_safe_rule(rule: Rule) -> None:
    pattern = rule.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    if regex is not None and (len(regex) > 1000 or not _SAFE.fullmatch(regex)):
        raise messages.BAD_TOKENIZER(why=f"its pattern {regex[:60]!r} could hang on some text, and is not run")
    if rule.get("length") == 0:  # the library would print a traceback of its own
        raise messages.BAD_TOKENIZER(why=f"{rule.get('type')} cuts a text into pieces of length 0")


def _growth(rule: Rule) -> float:
    """The most bytes that a rule makes of one."""
    kind, pattern = rule.get("type"), rule.get("pattern")
    if "content" in rule and pattern is not None:
        text, content = pattern.get("String") if isinstance(pattern, dict) else None, len(rule["content"].encode())
        return max(1.0, content / len(text.encode())) if text else 1.0 + content  # a pattern may match nothing
    if kind == "Prepend":
        return 1.0 + len(rule["prepend"].encode())
    if kind == "Precompiled":
        return max(1.0, _longest_entry(rule.get("precompiled_charsmap") or ""))
    if kind == "TemplateProcessing":
        pieces = max((rule.get(form) or () for form in ("single", "pair")), key=len)
        return max(1.0, sum("Sequence" in piece for piece in pieces))
    return _GROWTH.get(kind, 1.0)


def _longest_entry(charsmap: str) -> int:
    """The bytes of the longest replacement in SentencePiece's map: a size, a trie, and strings that end with NUL."""
    try:
        content = base64.b64decode(charsmap)
    except binascii.Error:
        return 0
    return max(map(len, content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")), default=0)


def _require_safe_model(tokenizer: tokenizers.Tokenizer) -> None:
    model = tokenizer.model
    if isinstance(model, models.WordPiece) and model.max_input_chars_per_word > _MAX_WORD:
        raise messages.BAD_TOKENIZER(
            why=f"max_input_chars_per_word is {model.max_input_chars_per_word:,}, the most that is run is {_MAX_WORD:,}"
        )
    added = [getattr(model, name, None) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix")]
    longest = max(map(len, (*tokenizer.get_vocab(), *added)), default=0)
    if longest > _MAX_TOKEN:
        raise messages.BAD_TOKENIZER(why=f"it has a token of {longest:,} characters, the most is {_MAX_TOKEN:,}")


def _probes(tokenizer: tokenizers.Tokenizer) -> Iterator[str]:
    """Characters that some rule makes longer, and the texts that replacements look for."""
    yield from _PROBES
    for step in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        for rule in [] if step is None else _rules(json.loads(step.__getstate__())):
            pattern = rule.get("pattern")
            text = pattern.get("String") if isinstance(pattern, dict) else None
            yield from (text, *rule.get("content", "")) if text else rule.get("content", "")


def _measured(tokenizer: tokenizers.Tokenizer, probe: str) -> float:
    """How much longer a text becomes before it is segmented, in bytes."""
    text = 16 * probe
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    words = [(text, None)] if tokenizer.pre_tokenizer is None else tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return sum(len(word.encode()) for word, _ in words) / len((16 * probe).encode())


def _require_growth(found: float, most: float) -> None:
    if found > most:
        raise messages.BAD_TOKENIZER(why=f"its rules could make a text {found:.1g} times as long")

"""What a model can be asked to do; that follows from what it is made of."""

from __future__ import annotations

from regard.errors import InputError
from regard.models.model import Model
from regard.text.tokenizer import Tokenizer


def verbs(model: Model, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The verbs that fit a model, first the one it was made for."""
    if model.readout.says == "vectors":
        return ("embed",)
    if model.readout.says != "words":
        return "classify", "embed"
    if model.decoder is None:
        # Who says each token from its two sides has never seen a mask.
        return ("fill", "score", "embed") if model.readout.sides == 1 else ("embed",)
    if model.encoder is None:
        return "generate", "score", "embed"
    return ("translate", "score", "embed", *(("fill",) if tokenizer.sentinels else ()))


def require_verb(model: Model, tokenizer: Tokenizer, verb: str, what: str | None = None) -> None:
    """Refuse what a model was not made for; `what` says it in other words than the verb."""
    known = verbs(model, tokenizer)
    if verb not in known:
        raise InputError(f"this model does not {what or verb}; it was made to {known[0]}. Try: regard {known[0]}.")

"""Published families, converted to ONNX: the conversion itself holds every graph to torch's answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.engines.onnx_export import convert_to_onnx
from regard.engines.prove import Sample
from tests.parity import zoo
from tests.parity.folders import ours, perturbed, save_theirs

FAMILIES = zoo.DECODERS | zoo.ENCODER_DECODERS | zoo.TOKEN_HEADS | zoo.SEQUENCE_HEADS | zoo.ENCODERS


@pytest.mark.storm
@pytest.mark.parametrize("name", FAMILIES)
def test_a_published_family_is_converted(name: str, tmp_path: Path):
    source = save_theirs(perturbed(FAMILIES[name]()), tmp_path / "theirs")
    sample = Sample.of(["a dog sat", "the cat", "dogs and cats sit in the park"])
    model, _ = convert_to_onnx(ours(source), source, tmp_path / "onnx", sample)
    graphs = {path.name for path in (tmp_path / "onnx").glob("*.onnx")}
    assert graphs == {f"{kind}.onnx" for kind in ("encoder", "decoder_step") if getattr(model, kind)}

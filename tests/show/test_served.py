"""What a page on a local port answers: JSON of any model, of the text it shows, in the words the model would say."""

from __future__ import annotations

import json
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

import pytest

from regard.errors import InputError
from regard.models import zoo
from regard.show.server import Live
from tests.small import TEXTS, small


def refused(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize(
    ("what", "asked"), [("off", {"look": 0, "heads": [["decoder.0.self", 0]]}), ("look", {"text": "the cat"})]
)
def test_answers_are_json_even_of_a_model_that_has_gone_wrong(what: str, asked: dict[str, Any]):
    model = small(zoo.gpt2(16, 1, 2))
    model.network.readout.words.weight.data.fill_(float("nan"))
    with Live(model.look(TEXTS[0]), lambda text, target: model.look(text, target)) as live:
        thread = Thread(target=live.serve_forever)
        thread.start()
        try:
            with urlopen(Request(f"{live.address}{what}", json.dumps(asked).encode()), timeout=60) as answer:
                found = json.loads(answer.read(), parse_constant=refused)
        finally:
            live.shutdown()
            thread.join()
    off = found if what == "off" else found["page"]["looks"][0]["off"]
    assert off["loss"] is None


def test_a_page_of_a_text_that_is_no_longer_shown_is_told_so():
    model = small(zoo.gpt2(16, 1, 2))
    with Live(model.look(TEXTS[0]), lambda text, target: model.look(text, target)) as live:
        before = live.payload[0]["turn"]
        asked = {"look": "0", "layer": "decoder.0.self", "head": "0", "rows": "0:2", "columns": "0:2", "size": "8"}
        assert live.weights({**asked, "turn": str(before)}).shape == (2, 2)
        after = live.look({"text": "the cat", "turn": before})["page"]["turn"]
        assert live.weights({**asked, "turn": str(after)}).shape == (2, 2)
        with pytest.raises(InputError, match="another text is shown by now"):
            live.weights({**asked, "turn": str(before)})
        with pytest.raises(InputError, match="another text is shown by now"):
            live.off({"look": 0, "heads": [], "turn": before})


@pytest.mark.parametrize("target", [None, "the cat sat on the"])
def test_what_is_said_without_heads_is_searched_for_as_the_model_searches(target: str | None):
    model = small(zoo.transformer(16, 2, 2), generation={"max_new_tokens": 3, "num_beams": 2, "bad_words_ids": [[5]]})
    with Live(model.look(TEXTS[0], target), lambda text, target: model.look(text, target)) as live:
        assert live.off({"look": 0, "heads": []})["said"] == model.translate(TEXTS[0])

"""The devices of this machine, and the bound of oneDNN's cache."""

from __future__ import annotations

import os
import re

import pytest
import torch

from regard.errors import InputError
from regard.models.device import choose_device, devices


def test_auto_is_the_first_device():
    assert devices()[-1] == "cpu"
    assert choose_device("auto").type == devices()[0]
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "mps", "toaster", "cuda:99"])
def test_a_missing_device_is_refused_with_the_list_of_devices(name: str):
    if name in devices():
        pytest.skip("this machine has it")
    message = f'no device "{name}" on this machine (--device). Use {" or ".join(devices())}.'
    with pytest.raises(InputError, match=re.escape(message) + "$"):
        choose_device(name)


def test_choosing_a_device_bounds_onednns_cache_unless_the_user_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    choose_device("cpu")
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "128"
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "3")
    choose_device("auto")
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "3"

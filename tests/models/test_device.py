"""Where a model can run is said by what the machine has."""

from __future__ import annotations

import re

import pytest
import torch

from regard.errors import InputError
from regard.models.device import choose_device, devices


def test_the_first_of_the_devices_is_chosen():
    assert devices()[-1] == "cpu"
    assert choose_device("auto").type == devices()[0]
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "mps", "toaster", "cuda:99"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name: str):
    if name in devices():
        pytest.skip("it is there")
    said = f'no device "{name}" on this machine (--device). Use {" or ".join(devices())}.'
    with pytest.raises(InputError, match=re.escape(said) + "$"):
        choose_device(name)

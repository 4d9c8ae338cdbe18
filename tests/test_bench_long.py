"""Long texts are measured fairly: the same work for all, each isolated, and no estimate passes for a measurement."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import __main__ as command_line
from bench import long
from bench.long import GIB, Cost, Costs, Found, Kept, Limits, by_length, extended, measure, plot, sweep
from bench.reformers import CHUNKS, FULL, LAYERS, LSH, MODELS, PLAIN, Case, work
from regard.errors import InputError

SMALL = Case(PLAIN, 128, depth=1, width=32, heads=2, window=16, threads=1)
ALL = [*MODELS]


def needed(who: str) -> None:
    """Skip a peer that is not here."""
    name = who.replace("-", "_")
    if name in command_line.REMEDIES:
        pytest.importorskip(name, reason=f"needs the peer: {command_line.REMEDIES[name]}")


@pytest.mark.parametrize("who", ALL)
def test_every_contestant_begins_with_the_loss_of_knowing_nothing_and_takes_a_step(who: str):
    needed(who)
    torch.manual_seed(1)
    case = replace(SMALL, who=who)
    _, loss = MODELS[who](case)
    text = torch.randint(256, (1, 129))
    assert loss(text[:, :-1], text[:, 1:]).item() == pytest.approx(math.log(256), abs=1.5)
    work(case)()
    if who in LAYERS:
        work(replace(case, work="attention"))()


def test_all_have_the_same_sizes():
    case = replace(SMALL, width=128, depth=4)
    sizes = {who: sum(p.numel() for p in MODELS[who](case)[0].parameters()) for who in (LSH, CHUNKS, FULL, PLAIN)}
    assert sizes[LSH] == sizes[CHUNKS]
    for who in (FULL, PLAIN):
        assert sizes[who] == pytest.approx(sizes[LSH], rel=0.15)  # queries of their own, a readout of its own


@pytest.mark.parametrize("length", [1024, 4096, 16_384, 2**16, 2**18, 2**20])
def test_there_are_as_many_buckets_as_windows_and_room_for_every_position(length: int):
    case = replace(SMALL, length=length, window=64)
    counts = case.buckets if isinstance(case.buckets, tuple) else (case.buckets,)
    assert math.prod(counts) == length // 64
    assert all(count % 2 == 0 for count in counts)
    assert math.prod(case.axes) == length


def test_a_measurement_is_taken_in_a_process_of_its_own():
    held = torch.zeros(40 * 2**20)  # 160 MiB that are not the other's
    cost = measure(SMALL, Limits())
    assert cost is not None
    assert 0 < cost.before < cost.peak < GIB
    assert cost.seconds > 0
    assert len(held)


@pytest.mark.parametrize("limits", [Limits(seconds=0.2), Limits(bytes=1024**2)])
def test_what_takes_too_much_is_ended(limits: Limits):
    assert measure(SMALL, limits) is None


class Foretold(Kept):
    """Costs that follow a law, with a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__(None)
        self.limit, self.asked = limit, []

    def get(self, case: Case, turn: int, limits: Limits) -> Cost | None:
        self.asked.append((turn, case.length, case.who))
        power = 2 if case.who == PLAIN else 1
        cost = Cost((1 + turn / 10) * (case.length / 64) ** power, 3.0 * case.length + 100, 100)
        return None if cost.seconds > self.limit else cost


def test_all_work_in_turns_and_what_is_too_long_is_estimated():
    cases = [replace(SMALL, who=who, length=length) for length in (64, 128, 256, 512) for who in (PLAIN, LSH)]
    kept = Foretold(limit=50)
    costs = sweep(cases, 3, Limits(seconds=60), kept)
    assert [who for turn, length, who in kept.asked if length == 64] == [PLAIN, LSH, LSH, PLAIN, PLAIN, LSH]
    assert [turn for turn, length, who in kept.asked if who == PLAIN and length == 512] == [0]
    assert costs[LSH, 512] == Cost(8.8, 3.0 * 512 + 100, 100)
    found = costs[PLAIN, 512]
    assert found.estimated
    assert found.seconds == pytest.approx(1.1 * 64)  # of the medians at 128 and at 256
    assert found.peak == pytest.approx(3.0 * 512 + 100)
    assert "| 512 | ~70 | 8.80 |" in by_length(costs, [PLAIN, LSH], long.seconds)
    with pytest.raises(InputError, match="--repeat"):
        sweep(cases, 0, Limits(), kept)


def test_what_is_hopeless_is_not_tried():
    cases = [replace(SMALL, length=length) for length in (64, 128, 1024, 4096)]
    kept = Foretold(limit=math.inf)
    costs = sweep(cases, 1, Limits(seconds=10), kept)
    assert [length for _, length, _ in kept.asked] == [64, 128]
    assert costs[PLAIN, 4096].estimated


def test_one_length_gives_no_estimate():
    assert extended({64: Cost(1, 2, 1)}, 128) is None


def test_what_was_measured_is_kept(tmp_path: Path):
    path, limits = tmp_path / "kept", Limits(seconds=0.2)
    assert Kept(path).get(SMALL, 0, limits) is None
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "cost": {"seconds": 7.0, "peak": 2, "before": 1, "estimated": False}}) + "\n")
    again = Kept(path)
    assert again.get(SMALL, 0, limits) == Cost(7.0, 2, 1)
    assert again.get(SMALL, 1, limits) is None
    assert len(path.read_text().splitlines()) == 2


def test_tables_and_a_picture(tmp_path: Path):
    steps: Costs = {
        (LSH, 64): Cost(1.234, GIB, 0), (LSH, 128): Cost(25.0, 12 * GIB, 0), (PLAIN, 64): Cost(0.5, GIB / 2, 0),
        (PLAIN, 128): Cost(2.0, GIB, 0, estimated=True),
    }  # fmt: skip
    tables = Found(steps, {(LSH, 3): Cost(1.0, GIB, GIB / 2)}, {}).tables([LSH, PLAIN])
    assert "| tokens | regard, LSH | torch, full fused |" in tables
    assert "| 64 | 1.23 | 0.50 |\n| 128 | 25 | ~2.00 |" in tables
    assert "| 128 | 12.0 | ~1.00 |" in tables
    assert "| layers | regard, LSH |\n|---|---|\n| 3 | 512 |" in tables
    plot(steps, [LSH, PLAIN], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_row_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    words = ["long", "--who", PLAIN, "--lengths", "64", "--depths", "1", "--depth-length", "64", "--repeat", "1"]
    words += ["--width", "32", "--depth", "1", "--heads", "2", "--threads", "1", "--plot", str(tmp_path / "plot.svg")]
    assert command_line.main(words) == 0
    assert "| 64 | " in capsys.readouterr().out
    assert command_line.main([*words, "--who", "nobody"]) == InputError.exit_code
    assert "no model is called 'nobody' (--who)" in capsys.readouterr().err


def test_a_missing_peer_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "reformer_pytorch", None)
    assert command_line.main(["long", "--threads", "1"]) == InputError.exit_code
    assert "pip install --no-deps -r bench/reformer.txt" in capsys.readouterr().err
    assert (Path(command_line.__file__).parent / "reformer.txt").is_file()


@pytest.mark.parametrize("length", [1, 1000, 10_000, 20_000, 1 << 20])
def test_buckets_of_any_length_are_even(length: int):
    buckets = Case(LSH, length).buckets
    assert all(count >= 2 and count % 2 == 0 for count in (buckets if isinstance(buckets, tuple) else (buckets,)))

"""Replies take as few writes as needed, nothing lost or late; Python's lock is given up sooner while serving."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from regard.serve.protocol import JoinedWrites

from .live import Live


class Transport:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed, "written after it was closed"
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True


async def joined(*actions: Any) -> Transport:
    """What arrives at a transport after these are written (bytes), waited for (None) or called by name."""
    transport = Transport()
    writes: Any = JoinedWrites(transport, asyncio.get_running_loop())  # type: ignore[arg-type]
    for action in actions:
        if action is None:
            await asyncio.sleep(0)
        elif isinstance(action, bytes):
            writes.write(action)
        else:
            getattr(writes, action)()
    return transport


@pytest.mark.parametrize(
    ("actions", "sent"),
    [
        ((b"head", b"body", b""), [b"headbody"]),
        ((b"head", None), [b"head"]),
        ((b"head", None, b"body", None), [b"head", b"body"]),
        ((b"head", b"body", b"more", None), [b"headbody", b"more"]),
        ((b"head", "close"), [b"head"]),
        (("close",), []),
    ],
)
def test_the_head_of_a_reply_is_sent_with_its_body_and_never_later_than_the_next_turn(actions: Any, sent: list[bytes]):
    assert asyncio.run(joined(*actions)).sent == sent


def test_a_reply_over_a_connection_is_one_write(server: Live, monkeypatch: pytest.MonkeyPatch):
    sent: list[bytes] = []
    write = asyncio.selector_events._SelectorSocketTransport.write  # type: ignore[attr-defined]

    def counted(transport: Any, data: bytes) -> None:
        sent.append(data)
        write(transport, data)

    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "write", counted)  # type: ignore[attr-defined]
    assert server("/health")[1] == b'{"status":"ok"}'
    assert [data.partition(b"\r\n\r\n")[2] for data in sent if data] == [b'{"status":"ok"}']


def test_the_event_loop_gets_pythons_lock_sooner_while_it_serves(server: Live):
    assert server("/health")[0] == 200
    assert sys.getswitchinterval() == pytest.approx(0.0005)

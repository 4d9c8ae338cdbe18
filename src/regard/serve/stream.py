"""Streams of completions: server-sent events with the text that is certain so far, as the worker decodes it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi.responses import StreamingResponse

from regard.decode.generate import GeneratedText
from regard.decode.stream import certain_text
from regard.serve.completions import Piece, Plan, Prompt, completion_text, generated_pieces, logprobs_of
from regard.serve.refusal import refusal_of

if TYPE_CHECKING:
    from regard.decode.continuous import Partial
    from regard.serve.worker import Job

Chunk = dict[str, Any]
Found = list[list[GeneratedText]]
T = TypeVar("T")

_PAUSE = 0.004  # seconds between two events of a stream, for each stream that is open


class Streams:
    """The open streams of a server.

    One thread writes their events, and each stream waits longer between two events the more streams are open: tokens
    that come meanwhile are sent as one event. Thus many streams leave the processor to decoding and to other requests.
    """

    def __init__(self) -> None:
        self.open = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="streams")

    async def write(self, function: Callable[..., T], *given: Any) -> T:
        """Call a function in the writer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, function, *given)

    async def pause(self, future: asyncio.Future[Any]) -> None:
        """Wait before the next event of a stream, at most until its future is done."""
        await asyncio.wait({future}, timeout=_PAUSE * self.open)


class EventStream(StreamingResponse):
    """A stream of server-sent events; its job ends with it, however it ends."""

    def __init__(self, events: AsyncIterator[str], job: Job[Found] | None, streams: Streams) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self.job, self.streams = job, streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.streams.open -= 1
            if self.job is not None:
                self.job.cancel()


class Progress:
    """The newest tokens of each row; the worker's thread writes them, the event loop reads them.

    A slow reader costs no memory: newer tokens replace those that it has not read. The loop is told once of all that
    come before it reads.
    """

    def __init__(self) -> None:
        self.loop, self.event = asyncio.get_running_loop(), asyncio.Event()
        self.lock, self.newest = threading.Lock(), dict[int, "Partial"]()

    def on_token(self, row: int, partial: Partial) -> None:
        """Called in the worker's thread."""
        with self.lock:
            told = bool(self.newest)
            self.newest[row] = partial
        if not told:
            self.loop.call_soon_threadsafe(self.event.set)

    def take(self) -> dict[int, Partial]:
        """What is new since it was last taken."""
        self.event.clear()
        with self.lock:
            found, self.newest = self.newest, {}
        return found


@dataclass
class Row:
    """What was sent of one row: a text that only grows."""

    plan: Plan
    prompt: Prompt
    offset: int  # of the completion in the choice's text: behind the prompt, if that is echoed
    sent: str = ""
    pieces: list[Piece] = field(default_factory=list)  # that were sent

    def advance(self, partial: Partial) -> tuple[str, list[Piece]]:
        """The text that is certain by now and was not sent yet, and its tokens."""
        before = () if self.plan.served.can("translate") else self.prompt.ids
        text = self.plan.tokenizer.decode([*before, *partial.tokens])
        certain = certain_text(completion_text(self.plan, self.prompt, text), self.plan.options.stop)
        return self._send(certain, partial.logprobs, complete=False)

    def finish(self, text: GeneratedText) -> tuple[str, list[Piece]]:
        """The rest of the text, and its tokens."""
        whole = completion_text(self.plan, self.prompt, text.text)
        return self._send(whole, text.logprobs, complete=True)

    def _send(self, text: str, logprobs: Any, *, complete: bool) -> tuple[str, list[Piece]]:
        if not text.startswith(self.sent):
            if not complete:
                return "", []
            text = self.sent  # cannot happen with a decoder that only appends; what was sent cannot be taken back
        new, self.sent = text[len(self.sent) :], text
        if self.plan.top is None or logprobs is None or not (new or complete):
            return new, []
        pieces = generated_pieces(
            self.plan, self.prompt, logprobs, end=len(text), offset=self.offset, known=self.pieces
        )  # fmt: skip
        if not complete:
            whole = lambda piece: piece.offset - self.offset + len(piece.text) <= len(text)  # noqa: E731
            pieces = [*takewhile(whole, pieces)]
        self.pieces += pieces
        return new, pieces


async def events(
    plan: Plan,
    job: Job[Found] | None,
    progress: Progress,
    streams: Streams,
    *,
    frame: Callable[[list[Chunk]], Chunk],
    echoed: Sequence[tuple[str, list[Piece]]],
    usage: Callable[[Found], Chunk] | None,
    done: Callable[[Found], None],
) -> AsyncIterator[str]:
    """The events of a stream: chunks of text per choice, how each ended, the usage if asked, and [DONE]."""
    if echoed:
        yield await streams.write(_echo, plan, echoed, frame)
    found: Found = [[] for _ in plan.requests]
    rows = [Row(plan, plan.prompts[index // plan.rows], _offset(plan, index)) for index in range(len(plan.requests))]
    try:
        if job is not None:
            future = asyncio.wrap_future(job.future)
            future.add_done_callback(lambda _: progress.event.set())
            while not future.done():
                await progress.event.wait()
                if new := await streams.write(_advance, plan, rows, progress.take(), frame):
                    yield new
                await streams.pause(future)
            found = future.result()
    except Exception as error:
        yield f"data: {refusal_of(error).body('/v1').decode()}\n\n"
        return
    done(found)
    last = await streams.write(lambda: "".join(event(frame([chunk])) for chunk in _last_chunks(plan, rows, found)))
    if usage is not None:
        last += event({**frame([]), "usage": usage(found)})
    yield f"{last}data: [DONE]\n\n"


def _echo(
    plan: Plan, echoed: Sequence[tuple[str, list[Piece]]], frame: Callable[[list[Chunk]], Chunk]
) -> str:  # fmt: skip
    """The events of the prompts that are repeated."""
    chunks = [
        choice(number, text, logprobs_of(plan, pieces))
        for index, (text, pieces) in enumerate(echoed)
        for number in range(index * plan.choices, (index + 1) * plan.choices)
    ]
    return "".join(event(frame([chunk])) for chunk in chunks)


def _advance(
    plan: Plan, rows: Sequence[Row], newest: dict[int, Partial], frame: Callable[[list[Chunk]], Chunk]
) -> str:  # fmt: skip
    """The events of the tokens that are new, one per choice."""
    found = []
    for index, partial in sorted(newest.items()):
        text, pieces = rows[index].advance(partial)
        if text or pieces:
            logprobs = logprobs_of(plan, pieces)
            found += [event(frame([choice(number, text, logprobs)])) for number in numbers(plan, index)]
    return "".join(found)


def _last_chunks(plan: Plan, rows: Sequence[Row], found: Found) -> list[Chunk]:
    """The rest of every choice, and how it ended."""
    chunks = []
    for index, row in enumerate(rows):
        texts = found[index][: plan.choices] if plan.rows == 1 else found[index][:1]
        places = numbers(plan, index)
        if plan.streams or not texts:
            rest, pieces = row.finish(texts[0]) if texts else ("", [])
            ended = "stop" if texts and texts[0].ended else "length"
            chunks += [choice(number, rest, logprobs_of(plan, pieces), ended) for number in places]
            continue
        for number, text in zip(places, [*texts, *texts[:1] * (len(places) - len(texts))]):
            rest, pieces = Row(plan, row.prompt, row.offset).finish(text)
            chunks.append(choice(number, rest, logprobs_of(plan, pieces), "stop" if text.ended else "length"))
    return chunks


def numbers(plan: Plan, row: int) -> range:
    """The choices that a row belongs to: one of its own, or all of its prompt's."""
    return range(row, row + 1) if plan.rows > 1 else range(row * plan.choices, (row + 1) * plan.choices)


def _offset(plan: Plan, row: int) -> int:
    return len(plan.prompts[row // plan.rows].text) if plan.echo else 0


def choice(index: int, text: str, logprobs: Any, finish_reason: str | None = None) -> Chunk:
    """One choice, or a part of it."""
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish_reason}


def event(value: Chunk) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"

"""Work outside of the event loop: in a worker, whose job a request that is given up takes along, or in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar

from regard.serve.worker import Stopping

if TYPE_CHECKING:
    from regard.api import LoadedModel
    from regard.serve.models import ServedModel
    from regard.serve.worker import Job

T = TypeVar("T")
Item = TypeVar("Item")

_SHORT = 1_000  # characters; to tokenize so many takes less than a millisecond


async def result_of(job: Job[T]) -> T:
    """The result of a job; if the request is cancelled, so is the job."""
    try:
        return await asyncio.shield(asyncio.wrap_future(job.future))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            raise Stopping from None  # the worker gave the job up
        raise
    finally:
        job.cancel()  # does nothing to a job that is finished


async def compute(function: Callable[[], T], size: float) -> T:
    """Read, tokenize or write a text of so many characters: in a thread, unless it is short.

    While workers compute, handing a sentence to a thread and back was measured to take longer than the work itself.
    """
    return function() if size <= _SHORT else await asyncio.to_thread(function)


async def on_items(
    served: ServedModel, function: Callable[[LoadedModel, list[Item]], list[T]], items: Sequence[Item], *,
    tokens: int = 0, key: Hashable = None,
) -> list[T]:  # fmt: skip
    """Run a function on items in the worker of a model; requests with the same key are batched."""
    return await result_of(served.workers.run(function, items, tokens=tokens, key=key))

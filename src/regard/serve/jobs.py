"""Waiting for a worker's job without blocking the event loop; a request that is given up takes its job along."""

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


async def on_items(
    served: ServedModel, function: Callable[[LoadedModel, list[Item]], list[T]], items: Sequence[Item], *,
    tokens: int = 0, key: Hashable = None,
) -> list[T]:  # fmt: skip
    """Run a function on items in the worker of a model; requests with the same key are batched."""
    return await result_of(served.workers.run(function, items, tokens=tokens, key=key))

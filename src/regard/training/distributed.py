"""Distributed training: the processes of a run, and how they share the weights: DDP or FSDP."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from regard.errors import InputError, RegardError, RunFailed
from regard.models.model import Network

T = TypeVar("T")

_START_TIMEOUT = timedelta(minutes=10)  # until all processes have started
_REPORT_SECONDS = 2.0  # in which every process that lost another one reports
_RANK_ZERO_TIMEOUT = timedelta(days=7)  # while rank 0 validates, saves or prepares, and gives signs of life


class World:
    """The processes of a run; here: a single one."""

    rank, size = 0, 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which validates, saves and writes messages."""
        return self.rank == 0

    def gather(self, *numbers: float) -> list[tuple[float, ...]]:
        """All-gather: the numbers of every process, by rank."""
        return [numbers]

    def gather_rows(self, own: Tensor) -> Tensor:
        """All-gather the rows of a tensor that are split over the processes; row i belongs to rank i % size."""
        return own

    def on_rank_zero(self, work: Callable[[], float | None]) -> float:
        """Do some work on rank 0 while the others wait; -> its result, or 0."""
        return work() or 0

    def rank_zero_first(self, work: Callable[[], T]) -> T:
        """Do some work on rank 0, then on the others, which find its files; -> the result of each."""
        return work()

    def strategy(self, network: Network, how: Literal["replicate", "shard"]) -> Strategy:
        """The strategy by which the processes share the weights."""
        return Strategy(network)


class Strategy:
    """How the processes share weights and gradients; here: a single process holds all."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def loss(self, inputs: Mapping[str, Any], targets: Tensor, smoothing: float, auxiliary: Tensor | None) -> Tensor:
        """The network's loss; the backward pass averages its gradients over all processes."""
        return self.network.loss(inputs, targets, smoothing, auxiliary)

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        """A context for each micro-batch (gradient accumulation): only the last one averages gradients."""
        return nullcontext()

    def warm_up(self, step: Callable[[], object]) -> None:
        """Do a forward and backward pass without effect, where the first one differs from all others."""

    def unsharded(self, tensor: Tensor) -> Tensor:
        """A whole tensor from its shards."""
        return tensor

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors from their shards, at least on rank 0."""
        return dict(tensors)

    def sharded(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `gathered`: this process' shards of whole tensors, named by parameter or "parameter/state"."""
        return dict(tensors)

    def local_network(self) -> Network:
        """A network that rank 0 can use without the others."""
        return self.network


class Replicated(Strategy):
    """Distributed data parallel (DDP): every process holds all weights."""

    @cached_property
    def module(self) -> nn.parallel.DistributedDataParallel:
        """The module that averages gradients; built once it is known which parameters are trained."""
        return nn.parallel.DistributedDataParallel(Loss(self.network), gradient_as_bucket_view=True)

    def loss(self, inputs: Mapping[str, Any], targets: Tensor, smoothing: float, auxiliary: Tensor | None) -> Tensor:
        return cast(Tensor, self.module(inputs, targets, smoothing, auxiliary))

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self.module.no_sync()

    def warm_up(self, step: Callable[[], object]) -> None:
        # After the first backward pass DDP rebuilds its gradient buckets, which changes the order of summation: without
        # a warm-up a resumed run would differ from one that never stopped.
        step()
        self.network.zero_grad()


class Loss(nn.Module):
    """The network's loss as a module."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Mapping[str, Any], targets: Tensor, smoothing: float, auxiliary: Tensor | None) -> Tensor:
        return self.network.loss(inputs, targets, smoothing, auxiliary)


class Sharded(Strategy):
    """Fully sharded data parallel (FSDP): every process holds a shard of each weight, and gathers a layer to use it."""

    def __init__(self, network: Network, world: World) -> None:
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        super().__init__(network)
        self.world = world
        for stack in (network.encoder, network.decoder):
            for layer in cast(nn.ModuleList, stack.layers) if stack is not None else ():
                fully_shard(layer)
        self.root = fully_shard(network)
        register_fsdp_forward_method(network, "loss")

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        self.root.set_requires_gradient_sync(last)
        return nullcontext()

    def unsharded(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return cast(DTensor, tensor.detach()).full_tensor() if isinstance(tensor, DTensor) else tensor

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, tensor in tensors.items():
            whole = self.unsharded(tensor)
            if self.world.first:
                found[name] = whole.cpu()
        return found

    def sharded(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        from torch.distributed.tensor import DTensor, distribute_tensor

        parameters = cast(dict[str, DTensor], dict(self.network.named_parameters()))
        found = {}
        for name, tensor in tensors.items():
            like = parameters[name.partition("/")[0]]
            found[name] = tensor
            if tensor.shape == like.shape:  # and is not the optimizer's count of steps
                placement = like.device_mesh, like.placements
                found[name] = distribute_tensor(tensor.to(like.device), *placement, src_data_rank=None)
        return found

    def local_network(self) -> Network:
        network = self.network.description.build(self.network.vocabulary, self.network.source_vocabulary)
        return network.to(self.world.device)


def end_at_once(rank: int, silent: list[int], timeout: int) -> None:
    """End this process with one line: a collective in which it waits for others cannot be left."""
    with suppress(OSError):
        os.write(2, f"regard: error: {_lost(rank, silent, _not_responded(timeout))}\n".encode())
    os._exit(RunFailed.exit_code)


class Signs:
    """Signs of life of all processes, in their store: while one works alone, the others see whether it still runs.

    Silence is counted in signs of our own, so that a job that is suspended as a whole goes on when it is resumed.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout: int,
        lost: Callable[[int, list[int], int], None] = end_at_once,
    ) -> None:  # fmt: skip
        # A connection of its own: a request that waits holds up the others on its connection.
        self.store = cast(Store, cast(Any, store).clone())
        self.rank, self.timeout, self.lost = rank, timeout, lost
        self.every = min(1.0, timeout / 4)  # seconds
        self.heard = {other: (b"", 0) for other in range(size) if other != rank}  # the last sign, and how often
        self.waits, self.ended = threading.Event(), threading.Event()
        threading.Thread(target=self._exchange, daemon=True).start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A time in which this process waits for the others, however long they work."""
        self.waits.set()
        try:
            yield
        finally:
            self.waits.clear()

    def _exchange(self) -> None:
        with suppress(RuntimeError, ConnectionError):  # the process that holds the store has ended
            for number in itertools.count():
                self.store.set(f"alive/{self.rank}", str(number))
                silent = self._silent()
                if silent and self.waits.is_set():
                    self.lost(self.rank, silent, self.timeout)
                if self.ended.wait(self.every):
                    return

    def _silent(self) -> list[int]:
        """The other processes that have given no sign for too long."""
        for rank, (sign, times) in self.heard.items():
            key = f"alive/{rank}"
            found = self.store.get(key) if self.store.check([key]) else b""
            self.heard[rank] = (sign, times + 1) if found == sign else (found, 0)
        return [rank for rank, (_, times) in self.heard.items() if times * self.every > self.timeout]


class DistributedWorld(World):
    """One of several processes that torchrun started."""

    def __init__(self, device: torch.device, signs: Signs) -> None:
        super().__init__(device)
        self.rank, self.size, self.signs = dist.get_rank(), dist.get_world_size(), signs
        self.waiting_group = dist.new_group(backend="gloo", timeout=_RANK_ZERO_TIMEOUT)

    def gather(self, *numbers: float) -> list[tuple[float, ...]]:
        everyone = self.gather_rows(torch.tensor([numbers], dtype=torch.float64))
        return [tuple(row) for row in everyone.tolist()]

    def gather_rows(self, own: Tensor) -> Tensor:
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own.contiguous())
        return torch.stack(everyone, dim=1).flatten(0, 1)

    def on_rank_zero(self, work: Callable[[], float | None]) -> float:
        result = torch.zeros((), dtype=torch.float64)
        if self.first:
            try:
                result.fill_(work() or 0)
            except BaseException:
                with suppress(RuntimeError):
                    dist.broadcast(result.fill_(math.nan), 0, group=self.waiting_group)
                raise
        with self.signs.waiting():
            dist.broadcast(result, 0, group=self.waiting_group)
        if result.isnan():
            raise RunFailed("rank 0 of this run has failed. See its own message.")
        return float(result)

    def rank_zero_first(self, work: Callable[[], T]) -> T:
        made: list[T] = []
        self.on_rank_zero(lambda: made.append(work()))
        found = made[0] if made else work()
        with self.signs.waiting():
            dist.barrier(group=self.waiting_group)
        return found

    def strategy(self, network: Network, how: Literal["replicate", "shard"]) -> Strategy:
        return Sharded(network, self) if how == "shard" else Replicated(network)


@contextmanager
def join_processes(device: torch.device, timeout: int) -> Iterator[World]:
    """Join the processes that torchrun started; a process that loses the others fails with one line."""
    rank = int(os.environ.get("RANK", 0))
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield World(device)
        return
    store: Store | None = None
    signs: Signs | None = None
    try:
        device, store = _rendezvous(device, timeout)
        signs = Signs(store, rank, dist.get_world_size(), timeout)
        yield DistributedWorld(device, signs)
    except RegardError as error:
        if rank:
            error.args = (f"rank {rank}: {error}",)
        raise
    except (RuntimeError, ConnectionError) as error:
        if not isinstance(error, dist.DistError | ConnectionError) and "gloo" not in str(error):
            raise
        timed_out = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        what = _not_responded(timeout) if timed_out else "has ended"
        lost = _lost_ranks(store, rank) if store is not None else []
        raise RunFailed(_lost(rank, lost, what)) from error
    finally:
        if signs is not None:
            signs.ended.set()
    dist.destroy_process_group()


def _lost(rank: int, others: list[int], what: str) -> str:
    """The message of a process that lost others."""
    named = f"rank {' and rank '.join(map(str, others))}" if others else "another process"
    remedy = "Run the same command to resume; torchrun --max-restarts does so by itself."
    return f"rank {rank}: {named} of this run {what}. {remedy}"


def _not_responded(timeout: int) -> str:
    return f"has not responded for {timeout} s or more (train.timeout)"


def _lost_ranks(store: Store, rank: int) -> list[int]:
    """The ranks that do not report within some seconds that they lost another one too."""
    missing = set(range(int(os.environ["WORLD_SIZE"]))) - {rank}

    def ask() -> None:
        with suppress(RuntimeError, ConnectionError):  # the process that holds the store has ended
            store.set(f"lost/{rank}", "")
            while missing:
                missing.difference_update([other for other in missing if store.check([f"lost/{other}"])])
                time.sleep(0.05)

    asking = threading.Thread(target=ask, daemon=True)  # a store that hangs does not answer at all
    asking.start()
    asking.join(_REPORT_SECONDS)
    return sorted(missing)


def _rendezvous(device: torch.device, timeout: int) -> tuple[torch.device, Store]:
    """Find the other processes and start the process group; -> the device of this process, and the shared store."""
    cuda = device.type == "cuda"
    if cuda:
        local, found = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local >= found:
            raise InputError(f"{found} GPUs for more processes (--nproc-per-node). Use --nproc-per-node {found}.")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    shared, rank, size = next(rendezvous("env://", timeout=_START_TIMEOUT))
    store = PrefixStore(_agreed_prefix(shared, rank, size), shared)
    backend, limit = "cpu:gloo,cuda:nccl" if cuda else "gloo", timedelta(seconds=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    return device if cuda else torch.device("cpu"), store


def _agreed_prefix(store: Store, rank: int, size: int) -> str:
    """A fresh key prefix that all processes agree on: the store may still hold keys of processes that have ended.

    Rank 0 draws the prefix and sends it to every process that has registered, until each has confirmed it.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"registered/{rank}", own)
        prefix: str = store.get(f"prefix/{own}").decode()
        store.set(f"{prefix}/{rank}", "")
        return prefix
    deadline, missing = time.monotonic() + _START_TIMEOUT.total_seconds(), set(range(1, size))
    while missing:
        for other in missing:
            if store.check([f"registered/{other}"]):
                store.set(f"prefix/{store.get(f'registered/{other}').decode()}", own)
        missing = {other for other in missing if not store.check([f"{own}/{other}"])}
        if missing and time.monotonic() > deadline:
            raise dist.DistStoreError(f"timed out waiting for ranks {sorted(missing)}")
        time.sleep(0.02)
    return own

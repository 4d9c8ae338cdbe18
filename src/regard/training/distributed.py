"""Several processes learn as one: who they are, how they agree, and how the weights lie among them."""

from __future__ import annotations

import math
import os
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

_MEETING = timedelta(minutes=10)  # until all processes have started
_PATIENCE = timedelta(days=7)  # while the first process judges, saves or prepares


class World:
    """The processes of a run; here: one on its own."""

    rank, size = 0, 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def first(self) -> bool:
        """Whether this is the process that judges, saves and speaks for all."""
        return self.rank == 0

    def gather(self, *numbers: float) -> list[tuple[float, ...]]:
        """Every process' numbers, by rank."""
        return [numbers]

    def rows(self, own: Tensor) -> Tensor:
        """Rows that were dealt round to the processes, together again; each has as many."""
        return own

    def lead(self, work: Callable[[], float | None]) -> float:
        """The first process works while the others wait; -> what it found, or 0."""
        return work() or 0

    def in_turn(self, work: Callable[[], T]) -> T:
        """The first process works, then the others do, who find what it left; -> what each made."""
        return work()

    def spread(self, network: Network, how: Literal["replicate", "shard"]) -> Spread:
        """Lay out the weights among the processes."""
        return Spread(network)


class Spread:
    """How the weights lie among the processes; here: all of them in the one there is."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def loss(self, inputs: Mapping[str, Any], targets: Tensor, smoothing: float, auxiliary: Tensor | None) -> Tensor:
        """The network's loss; its gradients are averaged over all processes on the way back."""
        return self.network.loss(inputs, targets, smoothing, auxiliary)

    def part(self, *, last: bool) -> AbstractContextManager[object]:
        """Around each part of a step: only the last one's way back averages gradients."""
        return nullcontext()

    def rehearse(self, step: Callable[[], object]) -> None:
        """Go forward and back once for nothing, where the first time is not like all others."""

    def full(self, tensor: Tensor) -> Tensor:
        """A tensor with all that other processes hold of it."""
        return tensor

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors with all that other processes hold of them; the first process is sure to get them."""
        return dict(tensors)

    def own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The opposite of `whole`: of full tensors, what this process holds ("name" or "name/what")."""
        return dict(tensors)

    def plain(self) -> Network:
        """A network that the first process can use on its own."""
        return self.network


class Replicated(Spread):
    """Every process holds all weights."""

    @cached_property
    def module(self) -> nn.parallel.DistributedDataParallel:
        """What averages gradients; made when it is known which weights learn."""
        return nn.parallel.DistributedDataParallel(Loss(self.network), gradient_as_bucket_view=True)

    def loss(self, inputs: Mapping[str, Any], targets: Tensor, smoothing: float, auxiliary: Tensor | None) -> Tensor:
        return cast(Tensor, self.module(inputs, targets, smoothing, auxiliary))

    def part(self, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self.module.no_sync()

    def rehearse(self, step: Callable[[], object]) -> None:
        # After the first way back gradients are bundled anew, and so summed in another order: a run that goes on
        # would differ from one that never stopped.
        step()
        self.network.zero_grad()


class Loss(nn.Module):
    """The network's loss as a module."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Mapping[str, Any], targets: Tensor, smoothing: float, auxiliary: Tensor | None) -> Tensor:
        return self.network.loss(inputs, targets, smoothing, auxiliary)


class Sharded(Spread):
    """Every process holds a slice of each weight, and gets the others' layer by layer when it needs them."""

    def __init__(self, network: Network, world: World) -> None:
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        super().__init__(network)
        self.world = world
        for stack in (network.encoder, network.decoder):
            for layer in cast(nn.ModuleList, stack.wiring.layers) if stack is not None else ():
                fully_shard(layer)
        self.root = fully_shard(network)
        register_fsdp_forward_method(network, "loss")

    def part(self, *, last: bool) -> AbstractContextManager[object]:
        self.root.set_requires_gradient_sync(last)
        return nullcontext()

    def full(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return cast(DTensor, tensor.detach()).full_tensor() if isinstance(tensor, DTensor) else tensor

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, tensor in tensors.items():
            full = self.full(tensor)
            if self.world.first:
                found[name] = full.cpu()
        return found

    def own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        from torch.distributed.tensor import DTensor, distribute_tensor

        parameters = cast(dict[str, DTensor], dict(self.network.named_parameters()))
        found = {}
        for name, tensor in tensors.items():
            like = parameters[name.partition("/")[0]]
            found[name] = tensor
            if tensor.shape == like.shape:  # and not a count of steps
                located = tensor.to(like.device), like.device_mesh, like.placements
                found[name] = distribute_tensor(*located, src_data_rank=None)
        return found

    def plain(self) -> Network:
        network = self.network.description.build(self.network.vocabulary, self.network.source_vocabulary)
        return network.to(self.world.device)


class Many(World):
    """One of the processes that torchrun started."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.patient = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def gather(self, *numbers: float) -> list[tuple[float, ...]]:
        own = torch.tensor(numbers, dtype=torch.float64)
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own)
        return [tuple(row.tolist()) for row in everyone]

    def rows(self, own: Tensor) -> Tensor:
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(everyone, own.contiguous())
        return torch.stack(everyone, dim=1).flatten(0, 1)

    def lead(self, work: Callable[[], float | None]) -> float:
        said = torch.zeros((), dtype=torch.float64)
        if self.first:
            try:
                said.fill_(work() or 0)
            except BaseException:
                with suppress(RuntimeError):
                    dist.broadcast(said.fill_(math.nan), 0, group=self.patient)
                raise
        dist.broadcast(said, 0, group=self.patient)
        if said.isnan():
            raise RunFailed("the first process of this run has failed. Its own line says why.")
        return float(said)

    def in_turn(self, work: Callable[[], T]) -> T:
        made: list[T] = []
        self.lead(lambda: made.append(work()))
        found = made[0] if made else work()
        dist.barrier(group=self.patient)
        return found

    def spread(self, network: Network, how: Literal["replicate", "shard"]) -> Spread:
        return Sharded(network, self) if how == "shard" else Replicated(network)


@contextmanager
def joined(device: torch.device, timeout: int) -> Iterator[World]:
    """The world that torchrun's environment tells of; who loses the others ends with one line."""
    rank = int(os.environ.get("RANK", 0))
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield World(device)
        return
    try:
        world = Many(_meet(device, timeout))
        yield world
    except RegardError as error:
        if rank:
            error.args = (f"rank {rank}: {error}",)
        raise
    except (RuntimeError, ConnectionError) as error:
        if not isinstance(error, dist.DistError | ConnectionError) and "gloo" not in str(error):
            raise
        late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        what = f"has been silent for {timeout} s or more (train.timeout)" if late else "has ended"
        raise RunFailed(
            f"rank {rank}: another process of this run {what}. Run the same command to go on; "
            "with torchrun --max-restarts it does so by itself."
        ) from error
    dist.destroy_process_group()


def _meet(device: torch.device, timeout: int) -> torch.device:
    """Find the other processes; -> the device of this one."""
    cuda = device.type == "cuda"
    if cuda:
        local, found = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local >= found:
            raise InputError(f"{found} GPUs for more processes (--nproc-per-node). Use --nproc-per-node {found}.")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    shared, rank, size = next(rendezvous("env://", timeout=_MEETING))
    store = PrefixStore(_round(shared, rank, size), shared)
    backend, limit = "cpu:gloo,cuda:nccl" if cuda else "gloo", timedelta(seconds=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    return device if cuda else torch.device("cpu")


def _round(store: Store, rank: int, size: int) -> str:
    """A name for this meeting that all agree on; the store still knows what processes that are gone had written.

    The first process thinks of a name and tells it to whoever is here, until each has said it back.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"here/{rank}", own)
        name: str = store.get(f"name/{own}").decode()
        store.set(f"{name}/{rank}", "")
        return name
    late, missing = time.monotonic() + _MEETING.total_seconds(), set(range(1, size))
    while missing:
        for other in missing:
            if store.check([f"here/{other}"]):
                store.set(f"name/{store.get(f'here/{other}').decode()}", own)
        missing = {other for other in missing if not store.check([f"{own}/{other}"])}
        if missing and time.monotonic() > late:
            raise dist.DistStoreError(f"timed out waiting for ranks {sorted(missing)}")
        time.sleep(0.02)
    return own

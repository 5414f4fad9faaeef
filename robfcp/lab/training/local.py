"""Local training of a round's clients: several at a time in slots, one graph replay a step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from robfcp.lab.training.pool import Pool


class LocalTrainer:
    """Runs SGD from the global state on each client's batches, `slots` clients side by side.

    The clients in the slots are stacked along a first axis and go through the network together
    (vmap); on a GPU the whole step is captured once and replayed, in bfloat16 where the stacked
    network allows it (batch norm under vmap needs single precision). A slot whose
    client has done its steps is read out and takes the next one, so unequal clients waste little.
    """

    def __init__(
        self,
        model: nn.Module,
        pool: Pool,
        *,
        slots: int,
        batch: int,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self.model, self.pool, self.slots = model.train(), pool, slots
        self.device = pool.y.device
        state = dict(model.named_parameters())
        self.weights = {
            name: _stack(value, slots).requires_grad_() for name, value in state.items()
        }
        self.buffers = {name: _stack(value, slots) for name, value in model.named_buffers()}
        self.rate = torch.zeros((), device=self.device)
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.SGD(
            self.weights.values(),
            lr=self.rate if on_gpu else 0.0,
            momentum=momentum,
            weight_decay=weight_decay,
            fused=on_gpu,
        )
        self.momenta = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        for name, value in self.weights.items():
            self.optimizer.state[value]["momentum_buffer"] = self.momenta[name]
        self.draws = torch.zeros((slots, batch, 4), dtype=torch.int32, device=self.device)
        self.graph = self._capture() if on_gpu else None

    def run(self, state: Tensor, batches: list[NDArray[np.int32]], learning_rate: float) -> Tensor:
        """The states (clients, P) the clients reach from `state`, each on its own batches."""
        plan, changes = schedule([len(steps) for steps in batches], self.slots)
        joined = torch.as_tensor(np.concatenate(batches), device=self.device)
        rows = torch.as_tensor(plan, device=self.device)
        self.rate.fill_(learning_rate)
        if self.graph is None:
            self.optimizer.param_groups[0]["lr"] = learning_rate
        result = torch.empty((len(batches), len(state)), device=self.device)
        for time in range(len(plan) + 1):
            for slot, finished, started in changes.get(time, ()):
                if finished is not None:
                    result[finished] = self._read(slot)
                if started is not None:
                    self._load(slot, state)
            if time < len(plan):
                self.draws.copy_(joined[rows[time]])
                if self.graph is None:
                    self._step()
                else:
                    self.graph.replay()
        return result

    def _step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        x, y = self.pool.batch(self.draws.flatten(0, 1))
        x, y = x.view(self.slots, -1, *x.shape[1:]), y.view(self.slots, -1)
        half = self.device.type == "cuda" and (self.slots == 1 or not self.buffers)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            if self.slots == 1:
                first = {name: value[0] for name, value in self.weights.items()}
                loss = self._loss(first, {k: v[0] for k, v in self.buffers.items()}, x[0], y[0])
            else:
                loss = vmap(self._loss)(self.weights, self.buffers, x, y).sum()
        loss.backward()
        self.optimizer.step()

    def _loss(
        self, weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> Tensor:
        logits = functional_call(self.model, (weights, buffers), (x,))
        return F.cross_entropy(logits.float(), y)

    def _capture(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self._step()
        return graph

    @torch.no_grad()
    def _load(self, slot: int, state: Tensor) -> None:
        position = 0
        for value in (*self.weights.values(), *self.buffers.values()):
            target = value[slot]
            target.copy_(state[position : position + target.numel()].view_as(target))
            position += target.numel()
        for value in self.momenta.values():
            value[slot].zero_()

    @torch.no_grad()
    def _read(self, slot: int) -> Tensor:
        values = (*self.weights.values(), *self.buffers.values())
        return torch.cat([value[slot].reshape(-1) for value in values])


def _stack(value: Tensor, slots: int) -> Tensor:
    return value.detach().expand(slots, *value.shape).clone()


def flatten(model: nn.Module) -> Tensor:
    """The network's state as one vector: parameters, then running statistics."""
    values: Iterable[Tensor] = (*model.parameters(), *model.buffers())
    return torch.cat([value.detach().reshape(-1).float() for value in values])


@torch.no_grad()
def unflatten(model: nn.Module, state: Tensor) -> None:
    """Write such a vector back into the network."""
    position = 0
    for value in (*model.parameters(), *model.buffers()):
        value.copy_(state[position : position + value.numel()].view_as(value))
        position += value.numel()


Change = tuple[int, int | None, int | None]


def schedule(steps: list[int], slots: int) -> tuple[NDArray[np.int64], dict[int, list[Change]]]:
    """Which row of the joined batches each slot takes at each time (times, slots), and when slots
    change hands: {time: [(slot, client that finished, client that starts)]}. Longest first."""
    starts = np.concatenate([[0], np.cumsum(steps)])
    queues: list[list[int]] = [[] for _ in range(slots)]
    load = [0] * slots
    for client in sorted(range(len(steps)), key=lambda k: -steps[k]):
        slot = load.index(min(load))
        queues[slot].append(client)
        load[slot] += steps[client]
    plan = np.zeros((max(load, default=0), slots), np.int64)
    changes: dict[int, list[Change]] = {}
    for slot, queue in enumerate(queues):
        time, previous = 0, None
        for client in queue:
            changes.setdefault(time, []).append((slot, previous, client))
            plan[time : time + steps[client], slot] = np.arange(starts[client], starts[client + 1])
            time, previous = time + steps[client], client
        if previous is not None:
            changes.setdefault(time, []).append((slot, previous, None))
    return plan, changes

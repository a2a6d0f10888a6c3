"""The training loop: steps, epochs, early stopping; it yields records that others write.

Everything random is named by (seed, step), so that a run interrupted between any two steps and
resumed from its state ends in the very same weights.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from xvfl.config import TrainConfig
from xvfl.data.rows import Rows
from xvfl.federation.page import Page, PagePlan
from xvfl.methods.base import Federation, Method
from xvfl.streams import stream


@dataclass(frozen=True)
class Progress:
    """Where a run is: enough, with the tensors, to go on."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_score: float = -math.inf
    best_epoch: int = -1
    stopped: bool = False


@dataclass(frozen=True)
class Record:
    """What happened in one step or at the end of one epoch."""

    kind: str
    """`step` or `epoch`."""
    progress: Progress
    """Where the run is after it."""
    values: dict[str, float]
    """Loss terms (their mean over the epoch), learning rate, validation score."""


class Trainer:
    """One run: nets with their optimisers, and where it is."""

    def __init__(
        self,
        federation: Federation,
        method: Method,
        holders: Mapping[str, nn.Module],
        rows: Rows,
        config: TrainConfig,
    ) -> None:
        """Hold a run of `method` over training `rows`; `holders` are its nets by who owns them."""
        self.federation = federation
        self.method = method
        self.holders = dict(holders)
        self.rows = rows
        self.config = config
        self.progress = Progress()
        self.optimisers = {name: optimiser(net, config) for name, net in self.holders.items()}
        self.batch = config.batch_of(len(rows))
        self.plan = PagePlan.default(self.batch, config.page_batch, config.page_probability)
        self.best: dict[str, dict[str, Tensor]] = {}
        self._sums: dict[str, Tensor] = {}

    @property
    def batches(self) -> int:
        """Steps of an epoch."""
        return math.ceil(len(self.rows) / self.batch)

    def run(self, validate: Callable[[], float]) -> Iterator[Record]:
        """Train until the epochs are used up or validation stops improving."""
        while self.progress.epoch < self.config.epochs and not self.progress.stopped:
            order = self._order(self.progress.epoch)
            while self.progress.batch < self.batches:
                yield self._step(order)
            yield self._end_epoch(validate())

    def _order(self, epoch: int) -> Tensor:
        rng = stream("cpu", self.config.seed, "order", epoch)
        return torch.randperm(len(self.rows), generator=rng).to(self.rows.y.device)

    def _step(self, order: Tensor) -> Record:
        at, step = self.progress.batch, self.progress.step
        rate = learning_rate(step, self.batches * self.config.epochs, self.config)
        index = order[at * self.batch : (at + 1) * self.batch]
        for each in self.optimisers.values():
            for group in each.param_groups:
                group["lr"] = rate
        for net in self.holders.values():
            net.train()
        terms = self._update(index, step)
        for name, value in terms.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        self.progress = replace(self.progress, batch=at + 1, step=step + 1)
        return Record("step", self.progress, {"lr": rate})

    def _update(self, index: Tensor, step: int) -> dict[str, Tensor]:
        pages = [each for each in self.optimisers.values() if isinstance(each, Page)]
        fresh = not pages or step == 0 or self._coin(step)
        rows = self.rows.take(index if fresh else index[: self.plan.b_small], step)
        terms = self._backward(rows)
        if pages and fresh:
            for page in pages:
                page.refresh()
        elif pages:
            for page in pages:
                page.look_back()
            self._backward(rows)
            for page in pages:
                page.correct()
        for each in self.optimisers.values():
            each.step()
        return terms

    def _coin(self, step: int) -> bool:
        draw = torch.rand((), generator=stream("cpu", self.config.seed, "coin", step))
        return bool(draw < self.plan.p)

    def _backward(self, rows: Rows) -> dict[str, Tensor]:
        for each in self.optimisers.values():
            each.zero_grad(set_to_none=True)
        terms = self.method.loss(self.federation, rows)
        self.federation.backward(torch.stack(list(terms.values())).sum())
        return {name: term.detach() for name, term in terms.items()}

    def _end_epoch(self, score: float) -> Record:
        values = {name: float(total) / self.batches for name, total in self._sums.items()}
        self._sums = {}
        now = self.progress
        if score > now.best_score:
            now = replace(now, best_score=score, best_epoch=now.epoch)
            self.best = {name: _copy(net.state_dict()) for name, net in self.holders.items()}
        waited = now.epoch - now.best_epoch
        stop = self.config.patience > 0 and waited >= self.config.patience
        self.progress = replace(now, epoch=now.epoch + 1, batch=0, stopped=stop)
        return Record("epoch", self.progress, {**values, "score": score})

    def load_best(self) -> None:
        """Put the weights of the best epoch into the nets."""
        for name, state in self.best.items():
            self.holders[name].load_state_dict(state)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Give everything needed to go on: tensors by name, and where the run is."""
        tensors: dict[str, Tensor] = {}
        for name, net in self.holders.items():
            tensors |= {f"net/{name}/{key}": value for key, value in net.state_dict().items()}
            best = self.best.get(name, {})
            tensors |= {f"best/{name}/{key}": value for key, value in best.items()}
            for at, slots in self.optimisers[name].state_dict()["state"].items():
                tensors |= {
                    f"optimiser/{name}/{at}/{key}": v for key, v in slots.items() if v is not None
                }
        tensors |= {f"sum/{name}": value for name, value in self._sums.items()}
        return {key: value.detach() for key, value in tensors.items()}, asdict(self.progress)

    def restore(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Take up a state that `state` gave."""
        self.progress = Progress(**progress)
        device = self.rows.y.device
        self._sums = {key: value.to(device) for key, value in _under(tensors, "sum/").items()}
        for name, net in self.holders.items():
            net.load_state_dict(_under(tensors, f"net/{name}/"))
            best = _under(tensors, f"best/{name}/")
            if best:
                self.best[name] = best
            slots: dict[int, dict[str, Tensor]] = {}
            for key, value in _under(tensors, f"optimiser/{name}/").items():
                at, slot = key.split("/", 1)
                slots.setdefault(int(at), {})[slot] = value
            fresh = self.optimisers[name].state_dict()
            self.optimisers[name].load_state_dict({**fresh, "state": slots})


def optimiser(net: nn.Module, config: TrainConfig) -> Optimizer:
    """Build one holder's optimiser."""
    weights = [parameter for parameter in net.parameters() if parameter.requires_grad]
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimiser == "sgd":
        return SGD(weights, rate, momentum=config.momentum, weight_decay=decay)
    if config.optimiser == "page":
        return Page(weights, rate, weight_decay=decay)
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[config.optimiser]
    return kind(weights, rate, weight_decay=decay, fused=True)


def learning_rate(step: int, total: int, config: TrainConfig) -> float:
    """Give the learning rate of a step: constant, or a half cosine down to zero."""
    if config.schedule == "constant":
        return config.learning_rate
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * step / max(total, 1)))


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in state.items()}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: v for key, v in tensors.items() if key.startswith(prefix)}

"""The training loop: steps, epochs, early stopping; it yields records that others write.

Everything random is named by (seed, step), so that a run interrupted between any two steps and
resumed from its state ends in the very same weights.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from xvfl.config import COORDINATOR, TrainConfig
from xvfl.methods.base import Federation, Method
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import Rows, RowSource
from xvfl.training.cuda_graph import CudaGraphStep
from xvfl.training.optimizer import OptimizedNet, Update, under
from xvfl.training.page import PagePlan
from xvfl.training.protocols import TrainableFederation


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
    """One run: a federation, the heads, and where it is."""

    def __init__(
        self,
        federation: TrainableFederation,
        method: Method,
        rows: RowSource,
        config: TrainConfig,
        seeds: Sequence[int] | None = None,
        captured: bool = False,
    ) -> None:
        """Hold a run of `method` over training `rows`; the nets are on their device by now.

        With several `seeds` it holds as many runs at once: nets are stacked, rows come run after
        run. `captured` steps are replayed as a CUDA graph; those of Adam and AdamW can be.
        """
        self.federation = federation
        self.method = method
        self.rows = rows
        self.config = config
        self.progress = Progress()
        self.heads = federation.begin(config, method.heads)
        self.seeds = tuple(seeds) if seeds else (config.random_state,)
        self.rows_of_run = len(rows) // len(self.seeds)
        self.batch = min(config.batch_size_for(self.rows_of_run), self.rows_of_run)
        self.plan = PagePlan.default(self.batch, config.page_batch_size, config.page_probability)
        self._sums: dict[str, Tensor] = {}
        self._captured: CudaGraphStep | None = None
        self._capture = captured and config.optimizer in ("adam", "adamw")

    @property
    def optimized_nets(self) -> dict[str, OptimizedNet]:
        """Every holder of this process."""
        return {**self.federation.optimized_nets, COORDINATOR: self.heads}

    @property
    def batches(self) -> int:
        """Steps of an epoch, all of one size; a different rest of the rows waits each time."""
        return self.rows_of_run // self.batch

    def run(self, validate: Callable[[], float]) -> Iterator[Record]:
        """Train until the epochs are used up or validation stops improving."""
        while self.progress.epoch < self.config.epochs and not self.progress.stopped:
            order = self.rows.order(self.seeds, self.progress.epoch)
            while self.progress.batch < self.batches:
                yield self._step(order)
            yield self._end_epoch(validate())

    def _step(self, order: Callable[[int, int], Tensor]) -> Record:
        at, step = self.progress.batch, self.progress.step
        rate = learning_rate(step, self.batches * self.config.epochs, self.config)
        index = order(at * self.batch, (at + 1) * self.batch)
        self.federation.train(True)
        if not self.method.heads.training:
            self.method.heads.train()
        if self._capture and self._captured is None:
            self._captured = CudaGraphStep(index, rate)
        if self._captured is None:
            terms = self._learn(index, step, rate)
        else:
            terms = self._captured(self._learn, index, step, rate)
        for name, value in terms.items():
            known = self._sums.get(name)
            self._sums[name] = value.clone() if known is None else known + value
        self.progress = replace(self.progress, batch=at + 1, step=step + 1)
        return Record("step", self.progress, {"lr": rate})

    def _learn(self, index: Tensor, step: int | Tensor, rate: float | Tensor) -> dict[str, Tensor]:
        if self.config.optimizer != "page":
            terms = self._backward(self.rows.take(index, step))
            self._tell(Update("plain", rate))
            return terms
        fresh = step == 0 or self._coin(int(step))
        rows = self.rows.take(index if fresh else index[: self.plan.b_small], step)
        terms = self._backward(rows)
        if fresh:
            self._tell(Update("fresh", rate))
            return terms
        self._tell(Update("look_back", rate))
        self._backward(rows)
        self._tell(Update("correct", rate))
        return terms

    def _tell(self, update: Update) -> None:
        self.federation.update(update)
        self.heads.update(update)

    def _coin(self, step: int) -> bool:
        draw = torch.rand(
            (), generator=named_generator("cpu", self.config.random_state, "coin", step)
        )
        return bool(draw < self.plan.p)

    def _backward(self, rows: Rows) -> dict[str, Tensor]:
        def work(federation: Federation, method: Method, rows: Rows) -> dict[str, Tensor]:
            self.heads.forget()
            terms = method.loss(federation, rows)
            first, *rest = terms.values()
            total = sum(rest, first)
            federation.backward(total * len(self.seeds) if len(self.seeds) > 1 else total)
            return {name: term.detach() for name, term in terms.items()}

        return self.federation.run_batch(self.method, rows, work)

    def _end_epoch(self, score: float) -> Record:
        values = {name: float(total) / self.batches for name, total in self._sums.items()}
        self._sums = {}
        now = self.progress
        if score > now.best_score:
            now = replace(now, best_score=score, best_epoch=now.epoch)
            self._tell(Update("keep"))
        waited = now.epoch - now.best_epoch
        stop = self.config.patience > 0 and waited >= self.config.patience
        self.progress = replace(now, epoch=now.epoch + 1, batch=0, stopped=stop)
        return Record("epoch", self.progress, {**values, "score": score})

    def load_best(self) -> None:
        """Put the weights of the best epoch into the nets."""
        self._tell(Update("best"))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Give everything this process needs to go on: tensors by name, and where the run is."""
        tensors: dict[str, Tensor] = {}
        for name, holder in self.optimized_nets.items():
            tensors |= holder.state(name)
        tensors |= {f"sum/{name}": value.detach() for name, value in self._sums.items()}
        return tensors, asdict(self.progress)

    def restore(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Take up a state that `state` gave."""
        self.progress = Progress(**progress)
        device = self.rows.device
        self._sums = {key: value.to(device) for key, value in under(tensors, "sum/").items()}
        for name, holder in self.optimized_nets.items():
            holder.restore(name, tensors)


def learning_rate(step: int, total: int, config: TrainConfig) -> float:
    """Give the learning rate of a step: constant, or a half cosine down to zero."""
    if config.schedule == "constant":
        return config.learning_rate
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * step / max(total, 1)))

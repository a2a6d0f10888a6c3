"""The training loop: steps, epochs, early stopping. It yields records; the caller writes them.

All random numbers are a function of (seed, step): a run that is interrupted between any two steps
and resumed from its state ends with identical weights.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from xvfl.config import COORDINATOR, MAX_BATCH_SIZE, MIN_STEPS, LossConfig, TrainConfig
from xvfl.methods.base import Federation, Method
from xvfl.options import require_resolved
from xvfl.primitives.mixed_order import labeled_share
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import Rows, RowSource
from xvfl.training.cuda_graph import CudaGraphStep
from xvfl.training.optimizer import OptimizedNet, WeightUpdate, strip_prefix
from xvfl.training.page import PagePlan
from xvfl.training.protocols import TrainableFederation


@dataclass(frozen=True)
class Progress:
    """Position in a run; together with the tensors, enough to resume."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_score: float = -math.inf
    """Of the best epoch; −∞ in the first epochs, whose scores do not count."""
    best_epoch: int = -1
    stopped: bool = False


@dataclass(frozen=True)
class Record:
    """Record of one step or one epoch."""

    kind: str
    """`step` or `epoch`."""
    progress: Progress
    """Position after it."""
    values: dict[str, float]
    """Loss terms (their mean over the epoch), learning rate, validation score."""


WARMUP = 0.1
"""Share of the steps in which the learning rate of `warmup` increases."""


class Trainer:
    """Train a method on a federation.

    Parameters
    ----------
    federation
        The parties, their nets on their devices.
    method
        The method; its heads are trained by the coordinator.
    rows
        Training rows.
    config
        Optimizer, schedule, epochs, early stopping; resolved.
    seeds
        One seed for each run that is trained at once, with stacked nets and rows ordered run by
        run; by default the configured `random_state`.
    pretraining
        Number of first epochs in which the coordinator's loss has weight 0, so that the parties
        train their nets by their own objectives alone; these epochs are not scored.
    image
        Whether a party has images; for the automatic batch size.
    cuda_graph
        Capture the step as a CUDA graph and replay it; applies to Adam and AdamW only.
    """

    def __init__(
        self,
        federation: TrainableFederation,
        method: Method,
        rows: RowSource,
        config: TrainConfig,
        seeds: Sequence[int] | None = None,
        cuda_graph: bool = False,
        pretraining: int = 0,
        image: bool = False,
    ) -> None:
        self.federation = federation
        self.method = method
        self.rows = rows
        require_resolved(config)
        self.config = config
        self.pretraining = pretraining
        self.progress = Progress()
        self.heads = federation.begin(config, method.heads)
        self.seeds = tuple(seeds) if seeds else (config.random_state,)
        self.epoch_size = rows.epoch_size
        self.batch_size = min(choose_batch_size(rows, config, image), self.epoch_size)
        self.plan = PagePlan.default(
            self.batch_size, config.page_batch_size, config.page_probability
        )
        self._sums: dict[str, Tensor] = {}
        """Of each term of the loss: the sum over the steps of this epoch that have it, and their
        number. (2,)"""
        self._interval = 1 if rows.unlabeled_share else config.completion_interval
        self._graph_steps: dict[bool, CudaGraphStep] = {}
        """The captured step, with and without completion."""
        self._use_graph = cuda_graph and config.optimizer in ("adam", "adamw", "muon")

    @property
    def optimized_nets(self) -> dict[str, OptimizedNet]:
        """All nets of this process, by name."""
        return {**self.federation.optimized_nets, COORDINATOR: self.heads}

    @property
    def batches_per_epoch(self) -> int:
        """Steps of an epoch; the last partial batch is dropped."""
        return self.epoch_size // self.batch_size

    def run(self, validate: Callable[[], float]) -> Iterator[Record]:
        """Train until the last epoch or until the validation score stops improving."""
        while self.progress.epoch < self.config.epochs and not self.progress.stopped:
            order = self.rows.order(self.seeds, self.progress.epoch)
            while self.progress.batch < self.batches_per_epoch:
                yield self._step(order)
            pretrains = self.progress.epoch < self.pretraining
            yield self._end_epoch(math.nan if pretrains else validate())

    def _step(self, order: Callable[[int, int], Tensor]) -> Record:
        at, step = self.progress.batch, self.progress.step
        rate = learning_rate(step, self.batches_per_epoch * self.config.epochs, self.config)
        index = order(at * self.batch_size, (at + 1) * self.batch_size)
        self.federation.train(True)
        if not self.method.heads.training:
            self.method.heads.train()
        completing = step % self._interval == 0
        train_batch = partial(self._train_batch, completing)
        if self._use_graph:
            if completing not in self._graph_steps:
                self._graph_steps[completing] = CudaGraphStep(index, rate)
            terms = self._graph_steps[completing](train_batch, index, step, rate)
        else:
            terms = train_batch(index, step, rate)
        for name, value in terms.items():
            counted = torch.stack([value, torch.ones_like(value)])
            self._sums[name] = self._sums[name] + counted if name in self._sums else counted
        self.progress = replace(self.progress, batch=at + 1, step=step + 1)
        return Record("step", self.progress, {"lr": rate})

    def _train_batch(
        self, completing: bool, index: Tensor, step: int | Tensor, rate: float | Tensor
    ) -> dict[str, Tensor]:
        if self.config.optimizer != "page":
            terms = self._backward(replace(self.rows.take(index, step), completing=completing))
            self._update(WeightUpdate("step", rate))
            return terms
        refresh = step == 0 or self._flip_coin(int(step))
        rows = self.rows.take(index if refresh else index[: self.plan.b_small], step)
        terms = self._backward(rows)
        if refresh:
            self._update(WeightUpdate("page_refresh", rate))
            return terms
        self._update(WeightUpdate("page_look_back", rate))
        self._backward(rows)
        self._update(WeightUpdate("page_correct", rate))
        return terms

    def _update(self, update: WeightUpdate) -> None:
        self.federation.update(update)
        self.heads.update(update)

    def _flip_coin(self, step: int) -> bool:
        rng = named_generator("cpu", self.config.random_state, "coin", step)
        return bool(torch.rand((), generator=rng) < self.plan.p)

    def _backward(self, rows: Rows) -> dict[str, Tensor]:
        def forward_backward(
            federation: Federation, method: Method, rows: Rows
        ) -> dict[str, Tensor]:
            self.heads.zero_grad()
            terms = method.loss(federation, rows)
            first, *rest = terms.values()
            total = sum(rest, first)
            if self.pretraining:
                total = total * self._loss_weight(rows.step)
            federation.backward(total * len(self.seeds) if len(self.seeds) > 1 else total)
            return {name: term.detach() for name, term in terms.items()}

        return self.federation.run_batch(self.method, rows, forward_backward)

    def _loss_weight(self, step: int | Tensor) -> float | Tensor:
        begun = step >= self.pretraining * self.batches_per_epoch
        return begun.float() if isinstance(begun, Tensor) else float(begun)

    def _end_epoch(self, score: float) -> Record:
        totals = {name: each.tolist() for name, each in self._sums.items()}
        values = {name: total / count for name, (total, count) in totals.items()}
        self._sums = {}
        now = self.progress
        if self.improves(now.epoch, score, now.best_score):
            best_score = score if now.epoch >= self.first_epochs else -math.inf
            now = replace(now, best_score=best_score, best_epoch=now.epoch)
            self._update(WeightUpdate("save_best"))
        epochs_since_best = now.epoch - max(now.best_epoch, self.pretraining - 1)
        stop = self.config.patience > 0 and epochs_since_best >= self.config.patience
        self.progress = replace(now, epoch=now.epoch + 1, batch=0, stopped=stop)
        return Record("epoch", self.progress, {**values, "score": score})

    @property
    def first_epochs(self) -> int:
        """Number of first epochs, whose scores do not count: each is replaced by the next.

        With few validation rows, nearly constant predictions can have a good score by chance.
        """
        trained = self.config.epochs - self.pretraining
        return self.pretraining + min(trained // 10, MAX_FIRST_EPOCHS)

    def improves(self, epoch: int, score: float, best: float) -> bool:
        """Return whether an epoch, counted from 0, replaces the best one so far."""
        return score > best or (epoch <= self.first_epochs and math.isfinite(score))

    def load_best(self) -> None:
        """Load the weights of the best epoch."""
        self._update(WeightUpdate("load_best"))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what this process needs to resume: tensors by key, and the progress."""
        tensors: dict[str, Tensor] = {}
        for name, net in self.optimized_nets.items():
            tensors |= net.state_tensors(name)
        tensors |= {f"sum/{name}": value.detach() for name, value in self._sums.items()}
        return tensors, asdict(self.progress)

    def restore(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.progress = Progress(**progress)
        device = self.rows.device
        self._sums = {key: value.to(device) for key, value in strip_prefix(tensors, "sum/").items()}
        for name, net in self.optimized_nets.items():
            net.load_state_tensors(name, tensors)


MAX_FIRST_EPOCHS = 6
"""The first epochs, which are not chosen as the best, are a tenth of all, at most this many."""
PRETRAINING_SHARE = 0.5
"""Largest share of the epochs that pretrain."""


def pretraining_epochs(
    rows: RowSource, loss: LossConfig, config: TrainConfig, image: bool = False
) -> int:
    """Choose the epochs of pretraining: more, the more rows have no label.

    Without reconstruction, parties have no objective of their own to pretrain with. With images,
    pretraining lowered the accuracy.
    """
    if image or not loss.reconstruction_weight:
        return 0
    return int(config.epochs * PRETRAINING_SHARE * rows.unlabeled_share)


def choose_batch_size(rows: RowSource, config: TrainConfig, image: bool = False) -> int:
    """Return the configured batch size, or choose it from the number of rows in an epoch.

    With images, the automatic batch has the number of labeled rows that it would have without
    unlabeled rows: fewer lowered the accuracy on CIFAR-10. It is smaller if training would have
    fewer than about `MIN_STEPS` steps, and has at most `MAX_BATCH_SIZE` rows.
    """
    size = config.batch_size_for(rows.epoch_size)
    if config.batch_size or not image:
        return size
    labeled = round((1 - rows.unlabeled_share) * len(rows))
    share = labeled_share(labeled, len(rows) - labeled)
    wanted = int(config.batch_size_for(int(share * rows.epoch_size)) / share)
    rows_per_step = max(rows.epoch_size * config.epochs / MIN_STEPS, 1)
    largest: int = 2 ** round(math.log2(rows_per_step))
    return min(wanted, max(size, largest), MAX_BATCH_SIZE)


def learning_rate(step: int, total: int, config: TrainConfig) -> float:
    """Return the learning rate of a step: constant, or cosine annealing to zero."""
    if config.schedule == "constant":
        return config.learning_rate
    rate = config.learning_rate * 0.5 * (1 + math.cos(math.pi * step / max(total, 1)))
    if config.schedule == "warmup":
        rate *= min(1.0, (step + 1) / max(WARMUP * total, 1))
    return rate

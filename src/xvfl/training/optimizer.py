"""Nets with their optimizers and best weights.

Every party has its own net, the coordinator has the heads. The training loop never accesses
weights: it sends the same `WeightUpdate` to all of them, in this process or over the network.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.adam import adam

from xvfl.config import TrainConfig
from xvfl.errors import RunError
from xvfl.training.page import Page

UpdateKind = Literal[
    "step", "page_refresh", "page_look_back", "page_correct", "save_best", "load_best"
]


@dataclass(frozen=True)
class WeightUpdate:
    """An operation on weights, applied to every net after a backward pass or an epoch.

    `step`: an optimizer step; `page_refresh`, `page_look_back`, `page_correct`: the phases of PAGE
    (see `page`); `save_best`: store the weights as the best; `load_best`: load the best weights.
    """

    kind: UpdateKind
    rate: float | Tensor = 0.0
    """The learning rate, for updates that step."""


class _WithoutCompiler(Optimizer):
    """An optimizer that does not import torch's compiler, which takes as long as importing torch.

    torch imports it in these methods to exclude them from compilation; nothing is compiled here.
    """

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


class QuickAdam(_WithoutCompiler, Adam):
    """torch's Adam without the import of the compiler."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the weights."""
        return inspect.unwrap(Adam.step)(self, closure)


class QuickLBFGS(_WithoutCompiler, LBFGS):
    """torch's L-BFGS without the import of the compiler."""


class OptimizedNet:
    """A net with its optimizer; nets in one process may share an optimizer."""

    def __init__(
        self, net: nn.Module, config: TrainConfig, shared: Optimizer | None = None
    ) -> None:
        """Take a net on its device; the caller steps a `shared` optimizer."""
        self.net = net
        self.weights = trainable_parameters(net)
        self.optimizer = shared or build_optimizer(self.weights, config)
        self._shares = shared is not None
        self.best: dict[str, Tensor] = {}

    def update(self, update: WeightUpdate) -> None:
        """Apply an update and clear the gradients."""
        if update.kind == "save_best":
            self.best = {key: v.detach().clone() for key, v in self.net.state_dict().items()}
        elif update.kind == "load_best":
            self.load_best()
        elif not self._shares:
            apply_update(self.optimizer, update)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for weight in self.weights:
            weight.grad = None

    def load_best(self) -> None:
        """Load the best weights, if any were saved."""
        if self.best:
            self.net.load_state_dict(self.best)

    def state_tensors(self, name: str) -> dict[str, Tensor]:
        """Return all tensors of a checkpoint, by key; `name` is part of every key."""
        tensors = {f"net/{name}/{key}": value for key, value in self.net.state_dict().items()}
        tensors |= {f"best/{name}/{key}": value for key, value in self.best.items()}
        for at, weight in enumerate(self.weights):
            slots = self.optimizer.state.get(weight, {})
            tensors |= {
                f"optimizer/{name}/{at}/{key}": v for key, v in slots.items() if v is not None
            }
        return {key: value.detach() for key, value in tensors.items()}

    def load_state_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Load the tensors that `state_tensors` returned."""
        self.net.load_state_dict(strip_prefix(tensors, f"net/{name}/"))
        self.best = strip_prefix(tensors, f"best/{name}/")
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in strip_prefix(tensors, f"optimizer/{name}/").items():
            number, slot = key.split("/", 1)
            slots.setdefault(int(number), {})[slot] = value
        state = self.optimizer.state_dict()
        parameters = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        places = {weight: at for at, weight in enumerate(parameters)}
        for at, weight in enumerate(self.weights):
            state["state"].pop(places[weight], None)
            if at in slots:
                state["state"][places[weight]] = _as(weight, slots[at])
        self.optimizer.load_state_dict(state)


def _as(weight: Tensor, slots: dict[str, Tensor]) -> dict[str, Tensor]:
    """Restore the memory format of optimizer state to that of its weight; files do not store it."""
    return {
        key: torch.empty_like(weight, dtype=value.dtype).copy_(value)
        if value.shape == weight.shape
        else value
        for key, value in slots.items()
    }


def trainable_parameters(net: nn.Module) -> list[nn.Parameter]:
    """List the parameters that require gradients."""
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def apply_update(optimizer: Optimizer, update: WeightUpdate) -> None:
    """Apply an update to an optimizer's weights and clear the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = update.rate
    if update.kind != "step":
        _apply_page(optimizer, update.kind)
    if update.kind != "page_look_back":
        optimizer_step(optimizer)
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = None


def optimizer_step(optimizer: Optimizer) -> None:
    """Step an optimizer; Adam on a CPU without the overhead that dominates for small nets."""
    group = optimizer.param_groups[0]
    weights = [weight for weight in group["params"] if weight.grad is not None]
    slots: list[dict[str, Tensor]] = [optimizer.state.get(weight, {}) for weight in weights]
    if not isinstance(optimizer, Adam) or group["capturable"] or not all(slots):
        optimizer.step()
        return
    with torch.no_grad():
        adam(
            weights,
            [weight.grad for weight in weights],
            [slot["exp_avg"] for slot in slots],
            [slot["exp_avg_sq"] for slot in slots],
            [],
            [slot["step"] for slot in slots],
            fused=True,
            decoupled_weight_decay=group["decoupled_weight_decay"],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _apply_page(optimizer: Optimizer, kind: UpdateKind) -> None:
    if not isinstance(optimizer, Page):
        raise RunError(f"update {kind!r}: expected PAGE, got {type(optimizer).__name__}")
    if kind == "page_refresh":
        optimizer.refresh()
    elif kind == "page_look_back":
        optimizer.look_back()
    else:
        optimizer.correct()


def build_optimizer(weights: Sequence[nn.Parameter], config: TrainConfig) -> Optimizer:
    """Build the configured optimizer."""
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "sgd":
        return SGD(weights, rate, momentum=config.momentum, weight_decay=decay)
    if config.optimizer == "page":
        return Page(weights, rate, weight_decay=decay)
    return QuickAdam(
        weights,
        rate,
        weight_decay=decay,
        fused=True,
        capturable=any(weight.is_cuda for weight in weights),
        decoupled_weight_decay=config.optimizer == "adamw",
    )


def strip_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose key starts with a prefix, and remove the prefix."""
    return {key[len(prefix) :]: v for key, v in tensors.items() if key.startswith(prefix)}

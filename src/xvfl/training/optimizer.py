"""Nets with their optimizers and best weights.

Every party has its own net, the coordinator has the heads. The training loop never accesses
weights: it sends the same `WeightUpdate` to all of them, in this process or over the network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from xvfl.config import TrainConfig
from xvfl.errors import RunError
from xvfl.training.muon import Muon, weight_matrices
from xvfl.training.page import Page
from xvfl.training.quick_optimizers import QuickAdam

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


class OptimizedNet:
    """A net with its optimizer; nets in one process may share an optimizer."""

    def __init__(
        self, net: nn.Module, config: TrainConfig, shared: Optimizer | None = None
    ) -> None:
        """Take a net on its device; the caller steps a `shared` optimizer."""
        self.net = net
        self.weights = trainable_parameters(net)
        self.optimizer = shared or build_optimizer([net], config)
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
        optimizer.step()
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = None


def _apply_page(optimizer: Optimizer, kind: UpdateKind) -> None:
    if not isinstance(optimizer, Page):
        raise RunError(f"update {kind!r}: expected PAGE, got {type(optimizer).__name__}")
    if kind == "page_refresh":
        optimizer.refresh()
    elif kind == "page_look_back":
        optimizer.look_back()
    else:
        optimizer.correct()


def build_optimizer(nets: Sequence[nn.Module], config: TrainConfig) -> Optimizer:
    """Build the configured optimizer of some nets."""
    weights = [weight for net in nets for weight in trainable_parameters(net)]
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "sgd":
        return SGD(weights, rate, momentum=config.momentum, weight_decay=decay)
    if config.optimizer == "page":
        return Page(weights, rate, weight_decay=decay)
    if config.optimizer == "muon":
        return Muon(weights, weight_matrices(nets), rate, decay)
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

"""A holder of weights: one net, its optimizer, its best copy.

Every party holds its own net, the coordinator the heads. The training loop never touches weights:
it tells every holder the same `Update`, in this process or over a wire.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.adam import adam

from xvfl.config import TrainConfig
from xvfl.errors import RunError
from xvfl.training.page import Page

Kind = Literal["plain", "fresh", "look_back", "correct", "keep", "best"]


@dataclass(frozen=True)
class Update:
    """What every holder does with the gradients of the last backward pass, or with its weights.

    `plain`: step; `fresh`, `look_back`, `correct`: PAGE's order of work (see `page`); `keep`:
    remember these weights as the best; `best`: put the best ones back.
    """

    kind: Kind
    rate: float | Tensor = 0.0
    """The learning rate, where the update makes a step."""


class OptimizedNet:
    """One net with its optimizer, which holders of one process may share."""

    def __init__(
        self, net: nn.Module, config: TrainConfig, shared: Optimizer | None = None
    ) -> None:
        """Hold a net, on the device where it is; somebody else steps a `shared` optimizer."""
        self.net = net
        self.weights = trainable(net)
        self.optimizer = shared or optimizer(self.weights, config)
        self._shares = shared is not None
        self.best: dict[str, Tensor] = {}

    def update(self, update: Update) -> None:
        """Do what an update says, and forget the gradients it used."""
        if update.kind == "keep":
            self.best = {key: v.detach().clone() for key, v in self.net.state_dict().items()}
        elif update.kind == "best":
            self.load_best()
        elif not self._shares:
            advance(self.optimizer, update)

    def forget(self) -> None:
        """Forget the gradients of a step that was not finished."""
        for weight in self.weights:
            weight.grad = None

    def settle(self) -> None:
        """Leave a step that will not be finished: its gradients, and a look back of PAGE's."""
        if isinstance(self.optimizer, Page):
            self.optimizer.give_up()
        self.forget()

    def load_best(self) -> None:
        """Put the best weights back, where there are any."""
        if self.best:
            self.net.load_state_dict(self.best)

    def state(self, name: str) -> dict[str, Tensor]:
        """Give every tensor needed to go on, under the holder's name."""
        tensors = {f"net/{name}/{key}": value for key, value in self.net.state_dict().items()}
        tensors |= {f"best/{name}/{key}": value for key, value in self.best.items()}
        for at, weight in enumerate(self.weights):
            slots = self.optimizer.state.get(weight, {})
            tensors |= {
                f"optimizer/{name}/{at}/{key}": v for key, v in slots.items() if v is not None
            }
        return {key: value.detach() for key, value in tensors.items()}

    def restore(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Take up a state that `state` gave."""
        self.net.load_state_dict(under(tensors, f"net/{name}/"))
        self.best = under(tensors, f"best/{name}/")
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in under(tensors, f"optimizer/{name}/").items():
            number, slot = key.split("/", 1)
            slots.setdefault(int(number), {})[slot] = value
        known = self.optimizer.state_dict()
        everyone = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        places = {weight: at for at, weight in enumerate(everyone)}
        for at, weight in enumerate(self.weights):
            known["state"].pop(places[weight], None)
            if at in slots:
                known["state"][places[weight]] = _as(weight, slots[at])
        self.optimizer.load_state_dict(known)


def _as(weight: Tensor, slots: dict[str, Tensor]) -> dict[str, Tensor]:
    """Lay an optimizer's memory out as the weight it belongs to: files keep no channels last."""
    return {
        key: torch.empty_like(weight, dtype=value.dtype).copy_(value)
        if value.shape == weight.shape
        else value
        for key, value in slots.items()
    }


def trainable(net: nn.Module) -> list[nn.Parameter]:
    """List the weights that training moves."""
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def advance(optimizer: Optimizer, update: Update) -> None:
    """Move an optimizer's weights as an update says, and forget the gradients it used."""
    for group in optimizer.param_groups:
        group["lr"] = update.rate
    if update.kind != "plain":
        _page(optimizer, update.kind)
    if update.kind != "look_back":
        step(optimizer)
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = None


def step(optimizer: Optimizer) -> None:
    """Make an optimizer's step; Adam's on a CPU without ceremony that outweighs small nets."""
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


def _page(optimizer: Optimizer, kind: Kind) -> None:
    if not isinstance(optimizer, Page):
        raise RunError(f"update {kind!r}: expected PAGE, got {type(optimizer).__name__}")
    if kind == "fresh":
        optimizer.refresh()
    elif kind == "look_back":
        optimizer.look_back()
    else:
        optimizer.correct()


def optimizer(weights: Sequence[nn.Parameter], config: TrainConfig) -> Optimizer:
    """Build an optimizer of these weights."""
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer == "sgd":
        return SGD(weights, rate, momentum=config.momentum, weight_decay=decay)
    if config.optimizer == "page":
        return Page(weights, rate, weight_decay=decay)
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[config.optimizer]
    capturable = any(weight.is_cuda for weight in weights)
    return kind(weights, rate, weight_decay=decay, fused=True, capturable=capturable)


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take the tensors whose names begin so, without that beginning."""
    return {key[len(prefix) :]: v for key, v in tensors.items() if key.startswith(prefix)}

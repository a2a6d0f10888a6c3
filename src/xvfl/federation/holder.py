"""A holder of weights: one net, its optimiser, its best copy.

Every party holds its own net, the coordinator the heads. The training loop never touches weights:
it tells every holder the same `Update`, in this process or over a wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from xvfl.config import TrainConfig
from xvfl.errors import RunError
from xvfl.federation.page import Page

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


class Holder:
    """One net with its optimiser."""

    def __init__(self, net: nn.Module, config: TrainConfig) -> None:
        """Hold a net, on the device where it is."""
        self.net = net
        self.optimiser = optimiser(net, config)
        self.best: dict[str, Tensor] = {}

    def update(self, update: Update) -> None:
        """Do what an update says, and forget the gradients it used."""
        if update.kind == "keep":
            self.best = {key: v.detach().clone() for key, v in self.net.state_dict().items()}
            return
        if update.kind == "best":
            self.load_best()
            return
        for group in self.optimiser.param_groups:
            group["lr"] = update.rate
        if update.kind != "plain":
            self._page(update.kind)
        if update.kind != "look_back":
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def _page(self, kind: Kind) -> None:
        if not isinstance(self.optimiser, Page):
            raise RunError(f"update {kind!r}: expected PAGE, got {type(self.optimiser).__name__}")
        if kind == "fresh":
            self.optimiser.refresh()
        elif kind == "look_back":
            self.optimiser.look_back()
        else:
            self.optimiser.correct()

    def settle(self) -> None:
        """Leave a step that will not be finished: its gradients, and a look back of PAGE's."""
        if isinstance(self.optimiser, Page):
            self.optimiser.give_up()
        self.optimiser.zero_grad(set_to_none=True)

    def load_best(self) -> None:
        """Put the best weights back, where there are any."""
        if self.best:
            self.net.load_state_dict(self.best)

    def state(self, name: str) -> dict[str, Tensor]:
        """Give every tensor needed to go on, under the holder's name."""
        tensors = {f"net/{name}/{key}": value for key, value in self.net.state_dict().items()}
        tensors |= {f"best/{name}/{key}": value for key, value in self.best.items()}
        for at, slots in self.optimiser.state_dict()["state"].items():
            tensors |= {
                f"optimiser/{name}/{at}/{key}": v for key, v in slots.items() if v is not None
            }
        return {key: value.detach() for key, value in tensors.items()}

    def restore(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Take up a state that `state` gave."""
        self.net.load_state_dict(under(tensors, f"net/{name}/"))
        self.best = under(tensors, f"best/{name}/")
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in under(tensors, f"optimiser/{name}/").items():
            at, slot = key.split("/", 1)
            slots.setdefault(int(at), {})[slot] = value
        fresh = self.optimiser.state_dict()
        self.optimiser.load_state_dict({**fresh, "state": slots})


def optimiser(net: nn.Module, config: TrainConfig) -> Optimizer:
    """Build one holder's optimiser."""
    weights = [parameter for parameter in net.parameters() if parameter.requires_grad]
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimiser == "sgd":
        return SGD(weights, rate, momentum=config.momentum, weight_decay=decay)
    if config.optimiser == "page":
        return Page(weights, rate, weight_decay=decay)
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[config.optimiser]
    capturable = any(weight.is_cuda for weight in weights)
    return kind(weights, rate, weight_decay=decay, fused=True, capturable=capturable)


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take the tensors whose names begin so, without that beginning."""
    return {key[len(prefix) :]: v for key, v in tensors.items() if key.startswith(prefix)}

"""The methods, each written once against `Federation`."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from xvfl.config import LossConfig
from xvfl.errors import ConfigError, unknown
from xvfl.methods.base import MODES, Federation, Method, Mode, View, require_mode
from xvfl.methods.fedcvt import FedCVT, FedCVTConfig, ReferenceMemory
from xvfl.methods.iavfl import IAVFL
from xvfl.methods.laser import Laser
from xvfl.methods.standalone import Standalone
from xvfl.methods.vanilla import Vanilla
from xvfl.methods.xvfl import XVFL, Weights
from xvfl.nets import ConcatHead

__all__ = [
    "METHODS",
    "MODES",
    "Federation",
    "Method",
    "MethodParts",
    "MethodSpec",
    "Mode",
    "View",
    "method_spec",
    "require_mode",
]


@dataclass(frozen=True)
class MethodParts:
    """What a method is built from."""

    head: Callable[[int], nn.Module]
    """Makes a fresh head over that many numbers."""
    parties: int
    width: int
    """The width d of an embedding."""
    seeds: tuple[int, ...]
    """One for each run trained at once."""

    def heads(self, width: int) -> nn.ModuleList:
        """Make one fresh head for each party."""
        return nn.ModuleList([self.head(width) for _ in range(self.parties)])

    def joint(self) -> ConcatHead:
        """Make a fresh head over the embeddings of all parties."""
        return ConcatHead(self.head(self.parties * self.width), self.parties)


def _xvfl(config: LossConfig, parts: MethodParts) -> Method:
    weights = Weights(
        single(config.lambda1, "lambda1"),
        single(config.lambda2, "lambda2"),
        config.self_completion_weight,
        config.stop_gradient,
        config.detach_cue,
        config.cross_completion,
        config.aggregation,
        config.n_masks,
        config.guidance,
    )
    side_by_side = config.aggregation == "concat"
    return XVFL(parts.joint() if side_by_side else parts.head(parts.width), weights)


def _standalone(config: LossConfig, parts: MethodParts) -> Method:
    return Standalone(parts.heads(parts.width))


def _vanilla(config: LossConfig, parts: MethodParts) -> Method:
    return Vanilla(parts.joint())


def _iavfl(config: LossConfig, parts: MethodParts) -> Method:
    share, temperature = config.distillation_alpha, config.distillation_temperature
    return IAVFL(parts.joint(), parts.heads(parts.width), share, temperature)


def _fedcvt(config: LossConfig, parts: MethodParts) -> Method:
    if parts.parties != 2:
        raise ConfigError(
            f"method fedcvt: expected two parties, got {parts.parties}; "
            "it is defined for two: take another method, or two of the parties"
        )
    both = 2 * parts.width
    return FedCVT(
        parts.head(2 * both),
        parts.heads(both),
        ReferenceMemory(both, runs=len(parts.seeds)),
        FedCVTConfig(),
    )


def _laser(config: LossConfig, parts: MethodParts) -> Method:
    return Laser(parts.heads(parts.width), config.method == "laser+mask", parts.seeds)


@dataclass(frozen=True)
class MethodSpec:
    """How a method is built, and which nets it needs at a party."""

    build: Callable[[LossConfig, MethodParts], Method]
    branches: int = 1
    """Bottoms of each party; their embeddings lie side by side."""
    completes: bool = False
    """Whether parties need completers."""


METHODS: dict[str, MethodSpec] = {
    "xvfl+": MethodSpec(_xvfl, completes=True),
    "xvfl": MethodSpec(_xvfl, completes=True),
    "standalone": MethodSpec(_standalone),
    "vanilla": MethodSpec(_vanilla),
    "iavfl": MethodSpec(_iavfl, branches=2),
    "fedcvt": MethodSpec(_fedcvt, branches=2),
    "laser": MethodSpec(_laser),
    "laser+mask": MethodSpec(_laser),
}


def method_spec(name: str) -> MethodSpec:
    """Find a method by its name."""
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    return METHODS[name]


def single(value: float | tuple[float, ...], name: str) -> float:
    """Take one λ; a list of them is for the search to try one by one."""
    if isinstance(value, tuple):
        raise ConfigError(f"{name}: expected one number here, got the list {value}")
    return value

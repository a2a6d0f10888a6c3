"""The methods, each written once against `Federation`."""

from collections.abc import Callable, Sequence

from torch import nn

from xvfl.config import LossConfig
from xvfl.errors import ConfigError, unknown
from xvfl.methods.base import Federation, Method, Mode, View
from xvfl.methods.laser import Laser
from xvfl.methods.standalone import Standalone
from xvfl.methods.xvfl import XVFL, Weights

__all__ = ["METHODS", "Federation", "Method", "Mode", "View", "make_method", "reachable"]

Head = Callable[[], nn.Module]


def _xvfl(config: LossConfig, head: Head, parties: int, seeds: Sequence[int]) -> Method:
    l1, l2 = single(config.lambda1, "lambda1"), single(config.lambda2, "lambda2")
    weights = Weights(l1, l2, config.our_weights[0], config.stop_gradient, config.detach_cue)
    return XVFL(head(), weights)


def _standalone(config: LossConfig, head: Head, parties: int, seeds: Sequence[int]) -> Method:
    return Standalone(nn.ModuleList([head() for _ in range(parties)]))


def _laser(config: LossConfig, head: Head, parties: int, seeds: Sequence[int]) -> Method:
    heads = nn.ModuleList([head() for _ in range(parties)])
    return Laser(heads, config.method == "laser+mask", seeds)


METHODS: dict[str, Callable[[LossConfig, Head, int, Sequence[int]], Method]] = {
    "xvfl+": _xvfl,
    "xvfl": _xvfl,
    "standalone": _standalone,
    "laser": _laser,
    "laser+mask": _laser,
}


def make_method(config: LossConfig, head: Head, parties: int, seeds: Sequence[int]) -> Method:
    """Build a method for the runs of these seeds by its name; `head` makes a fresh head."""
    if config.method not in METHODS:
        raise ConfigError(unknown("method", config.method, METHODS))
    return METHODS[config.method](config, head, parties, seeds)


def reachable(method: Method, parties: Sequence[int]) -> Method:
    """Leave only what a method has for the reachable parties (D7); goes with `Rows.only`."""
    return method.only(parties) if isinstance(method, Standalone | Laser) else method


def single(value: float | tuple[float, ...], name: str) -> float:
    """Take one λ; a list of them is for the search to try one by one."""
    if isinstance(value, tuple):
        raise ConfigError(f"{name}: expected one number here, got the list {value}")
    return value

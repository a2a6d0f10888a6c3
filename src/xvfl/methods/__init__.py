"""The methods, each written once against `Federation`, and the registry of their names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from xvfl.config import METHOD_NAMES, LossConfig, PrivacyConfig, TaskKind
from xvfl.errors import ConfigError, unknown
from xvfl.methods.base import MODES, Federation, Method, Mode, View, require_mode
from xvfl.methods.laser import Laser
from xvfl.methods.noisy_labels import NoisyLabels
from xvfl.methods.standalone import Standalone
from xvfl.methods.vanilla import Vanilla
from xvfl.methods.xvfl import XVFL, XVFLWeights
from xvfl.nets import AdaptedHead, ConcatHead
from xvfl.options import require_resolved
from xvfl.primitives.task import CLASSIFICATION, Task

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
    "register_method",
    "require_mode",
    "require_one_branch",
    "require_task",
    "unregister_method",
]


@dataclass(frozen=True)
class MethodParts:
    """Sizes of a run, and builders of heads, for building a method."""

    head: Callable[[int], nn.Module]
    """Build a new head for an input of the given width."""
    parties: int
    """Number of parties."""
    width: int
    """Width d of an embedding."""
    seeds: tuple[int, ...]
    """One seed for each run that is trained at once."""
    adapter: Callable[[int], nn.Module] | None = None
    """Build a new adapter of a party's uploaded embeddings, by its index; None without uploads."""
    adapted_width: int = 0
    """Width of adapted embeddings."""
    task: Task = CLASSIFICATION
    """What the heads predict: a class or a number."""

    def heads(self, width: int) -> nn.ModuleList:
        """Build one new head for each party."""
        return nn.ModuleList([self.head(width) for _ in range(self.parties)])

    def shared(self) -> nn.Module:
        """Build a new head over the mean of embeddings, with adapters where they are needed."""
        if self.adapter is None:
            return self.head(self.width)
        adapters = [self.adapter(party) for party in range(self.parties)]
        return AdaptedHead(self.head(self.adapted_width), adapters)

    def joint(self) -> ConcatHead:
        """Build a new head over the concatenated embeddings of all parties."""
        return ConcatHead(self.head(self.parties * self.width), self.parties)


@dataclass(frozen=True)
class MethodSpec:
    """How a method is built, and which nets it needs at a party."""

    build: Callable[[LossConfig, MethodParts], Method]
    """Build the method from the configuration of the loss and the parts of the run."""
    branches: int = 1
    """Number of bottoms of each party; their embeddings are concatenated."""
    completes: bool = False
    """Whether parties need completers."""
    uses_unlabeled: bool = False
    """Whether the method can train on unlabeled rows, whose `Rows.y` is −1."""
    regression: bool = False
    """Whether the method also predicts numbers, with the losses of `MethodParts.task`."""


def _xvfl(config: LossConfig, parts: MethodParts) -> Method:
    require_resolved(config)
    weights = XVFLWeights(
        config.lambda1,
        config.lambda2,
        config.self_completion_weight,
        config.stop_gradient,
        config.detach_cue,
        config.cross_completion,
        config.aggregation,
        config.n_masks,
        config.guidance or 0.0,
        bool(config.joint_masks),
        # Uploads have no self views.
        config.cross_completion or parts.adapter is None,
    )
    concat = config.aggregation == "concat"
    return XVFL(parts.joint() if concat else parts.shared(), weights, task=parts.task)


def _laser(config: LossConfig, parts: MethodParts) -> Method:
    masked = config.method == "laser+mask"
    return Laser(parts.heads(parts.width), masked, parts.seeds, parts.task)


def _standalone(config: LossConfig, parts: MethodParts) -> Method:
    return Standalone(parts.heads(parts.width), parts.task)


def _vanilla(config: LossConfig, parts: MethodParts) -> Method:
    return Vanilla(parts.joint(), parts.task)


METHODS: dict[str, MethodSpec] = {
    "xvfl+": MethodSpec(_xvfl, completes=True, uses_unlabeled=True, regression=True),
    "xvfl": MethodSpec(_xvfl, completes=True, regression=True),
    "standalone": MethodSpec(_standalone, regression=True),
    "vanilla": MethodSpec(_vanilla, regression=True),
    "laser": MethodSpec(_laser, regression=True),
    "laser+mask": MethodSpec(_laser, regression=True),
}
"""The methods by name; `register_method` adds others."""


def protect_labels(
    method: Method, privacy: PrivacyConfig, n_classes: int, seeds: Sequence[int]
) -> Method:
    """Return the method to train with: with label protection `noise`, parties get noisy labels."""
    if privacy.label_protection != "noise":
        return method
    return NoisyLabels(method, privacy.label_noise, n_classes, seeds)


def register_method(name: str, spec: MethodSpec) -> None:
    """Register a method, so that `LossConfig(method=name)` and `XVFLClassifier` accept it.

    Every process of a run must register it: the coordinator and all parties.

    Parameters
    ----------
    name : str
        Name of the method.
    spec : MethodSpec
        How to build it.

    Raises
    ------
    ConfigError
        If the name is already registered.

    Examples
    --------
    >>> from xvfl.methods import MethodSpec, register_method, unregister_method
    >>> from xvfl.methods.vanilla import Vanilla
    >>> register_method("mine", MethodSpec(lambda loss, parts: Vanilla(parts.joint())))
    >>> unregister_method("mine")
    """
    if name in METHODS:
        raise ConfigError(f"method {name!r}: already registered; choose another name")
    METHODS[name] = spec
    METHOD_NAMES.append(name)


def unregister_method(name: str) -> None:
    """Remove a method that was added by `register_method`."""
    del METHODS[name]
    METHOD_NAMES.remove(name)


def method_spec(name: str) -> MethodSpec:
    """Return the specification of a method."""
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    return METHODS[name]


def require_task(name: str, task: TaskKind) -> None:
    """Reject a method that predicts classes only where the label is a number."""
    if task == "regression" and not method_spec(name).regression:
        numbers = ", ".join(each for each, spec in METHODS.items() if spec.regression)
        raise ConfigError(
            f"method {name!r} predicts classes only; for regression choose one of {numbers}"
        )


def require_one_branch(name: str) -> None:
    """Reject a method that needs two embeddings of a row where parties upload one."""
    if method_spec(name).branches > 1:
        valid = ", ".join(each for each, spec in METHODS.items() if spec.branches == 1)
        raise ConfigError(
            f"method {name!r}: parties would need two encoders each, and with label_protection "
            f"'no_gradients' they upload the embeddings of one; choose one of {valid}, or "
            "label_protection 'off' or 'noise'"
        )

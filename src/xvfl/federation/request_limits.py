"""A party's limits on a coordinator: ε of its uploads, and the settings of interactive training.

A party takes part in interactive training only with partners that it trusts: with gradients of its
choice, a coordinator can train the party's net to reveal features.
"""

from dataclasses import asdict, dataclass

from xvfl.config import METHOD_NAMES
from xvfl.errors import ConfigError, WireError, unknown
from xvfl.federation.run_settings import RunSettings
from xvfl.options import require_resolved
from xvfl.wire.texts import PLAIN_NAME

MAX_SIZE = 4096
"""Largest size of a net."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits of a party on what a coordinator may request."""

    max_epsilon: float | None = None
    """Largest ε of differential privacy of a row, over all versions of the party's encoder
    together. By default it is not limited; with it, the party takes no part in interactive
    training."""
    max_delta: float = 1e-5
    """The δ at which `max_epsilon` applies."""

    def __post_init__(self) -> None:
        if self.max_epsilon is not None and self.max_epsilon <= 0:
            raise ConfigError(f"limits.max_epsilon: expected above 0, got {self.max_epsilon}")
        if not 0 < self.max_delta < 1:
            raise ConfigError(f"limits.max_delta: expected between 0 and 1, got {self.max_delta}")

    def check(self, settings: RunSettings) -> None:
        """Refuse settings of a run that the party does not allow, before they have any effect."""
        PLAIN_NAME.read(settings.run, "Begin: run")
        if settings.method not in METHOD_NAMES:
            raise WireError(f"Begin: {unknown('method', settings.method, METHOD_NAMES)}")
        if not settings.privacy.sends_gradients:
            raise WireError(
                "Begin: interactive training sends gradients; expected label_protection 'off' or "
                f"'noise', got {settings.privacy.label_protection!r}; without gradients, parties "
                "upload embeddings"
            )
        if self.max_epsilon is not None:
            raise WireError(
                f"Begin: this party allows ε up to {self.max_epsilon:g}, and interactive training "
                "has no differential privacy; the party's operator can remove limits.max_epsilon"
            )
        try:
            require_resolved(settings.net, settings.train, settings.privacy)
        except ConfigError as error:
            raise WireError(f"Begin: {error}") from error
        for name, value in asdict(settings.net).items():
            if isinstance(value, int) and not 0 <= value <= MAX_SIZE:
                raise WireError(f"Begin: {name}: expected up to {MAX_SIZE}, got {value}")

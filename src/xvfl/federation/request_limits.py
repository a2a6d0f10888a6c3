"""A party's limits on interactive training: what a coordinator can make it compute.

A party takes part in interactive training only with partners that it trusts: with gradients of its
choice, a coordinator can train the party's net to reveal features. The limits bound sizes, not what
is learned.
"""

from dataclasses import asdict, dataclass, fields, replace

import torch

from xvfl.config import METHOD_NAMES, LossConfig, NetConfig, PrivacyConfig
from xvfl.errors import ConfigError, WireError, unknown
from xvfl.federation.run_settings import RunSettings
from xvfl.methods.build import build_parties
from xvfl.nets.numbers import N_FREQUENCIES
from xvfl.options import require_resolved
from xvfl.primitives.layout import Layout
from xvfl.wire.texts import PLAIN_NAME

MAX_SIZE = 4096
"""Largest size of a net; `max_parameters` bounds all together."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits of a party on what a coordinator may request."""

    max_parameters: int = 25_000_000
    """Largest number of parameters of the party's nets."""
    max_batch_bytes: int = 2**31
    """Largest estimated memory of the copies of rows in one request, in bytes. Of images, the
    estimate counts two layers; deep nets take several times as much."""
    max_epsilon: float | None = None
    """Largest ε of differential privacy of a row, over all versions of the party's encoder
    together. By default it is not limited; with it, the party takes no part in interactive
    training."""
    max_delta: float = 1e-5
    """The δ at which `max_epsilon` applies."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and value <= 0:
                raise ConfigError(f"limits.{each.name}: expected above 0, got {value}")
        if not self.max_delta < 1:
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

    def check_parameters(self, layout: Layout, settings: RunSettings) -> None:
        """Refuse nets with too many parameters."""
        count = count_parameters(layout, settings.net, settings.method, settings.privacy)
        if count > self.max_parameters:
            raise WireError(
                f"Begin: this party allows nets of {self.max_parameters} parameters, got {count}; "
                "lower `hidden_dim`, `embedding_dim` or `members`, or the party's operator can "
                "raise limits.max_parameters"
            )


UNLIMITED = RequestLimits(2**60, 2**60)
"""For a party that trusts the coordinator, such as the coordinator's own."""


def count_parameters(layout: Layout, config: NetConfig, method: str, privacy: PrivacyConfig) -> int:
    """Count the parameters of a party's nets, without memory for them."""
    single = replace(config, members=1)
    with torch.device("meta"):
        (net,) = build_parties(
            {"": layout}, single, LossConfig(method=method), [0], privacy=privacy
        ).values()
    return config.members * sum(each.numel() for each in net.parameters())


def copy_bytes(layout: Layout, config: NetConfig) -> int:
    """Estimate the memory of one copy of a row in a training step; of images, in two layers."""
    if layout.image is not None:
        channels, height, width = layout.image
        return 4 * height * width * (channels + 1 + 2 * config.base_channels)
    numbers = sum(feature.kind == "numeric" for feature in layout.features)
    waves = numbers * (4 * N_FREQUENCIES + 2 * (config.number_embedding_dim or 0))
    inputs = layout.encoded + layout.raw + (waves if config.number_embedding_dim else 0)
    bottom = inputs + 4 * config.hidden_dim + 2 * config.embedding_dim
    completer = 4 * config.hidden_dim + 3 * layout.encoded
    return 4 * config.members * (bottom + completer)

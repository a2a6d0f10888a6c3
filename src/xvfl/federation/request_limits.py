"""A party's limits on interactive training: what a coordinator can make it compute and store.

A party takes part in interactive training only with partners that it trusts: with gradients of its
choice, a coordinator can train the party's net to reveal features. The limits bound sizes, not what
is learned. A run's name belongs to its settings, because the party derives masks from it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xvfl.config import METHOD_NAMES, LossConfig, NetConfig, PrivacyConfig
from xvfl.errors import ConfigError, RunError, WireError, unknown
from xvfl.federation.build import build_parties
from xvfl.federation.run_settings import RunSettings
from xvfl.nets.numbers import N_FREQUENCIES
from xvfl.options import require_resolved
from xvfl.primitives.layout import Layout
from xvfl.system.files import atomic_write
from xvfl.wire.texts import PLAIN_NAME


def _check_positive(limits: Any, prefix: str) -> None:
    for each in fields(limits):
        value = getattr(limits, each.name)
        if isinstance(value, (int, float)) and value <= 0:
            raise ConfigError(f"{prefix}.{each.name}: expected above 0, got {value}")


@dataclass(frozen=True)
class SettingsLimits:
    """Largest value that a party accepts of each setting."""

    embedding_dim: int = 512
    """Size of the embeddings."""
    hidden_dim: int = 1024
    """Size of hidden layers."""
    skip_rank: int = 64
    """Rank of the linear skip."""
    number_embedding_dim: int = 32
    """Size of the embedding of a number."""
    n_blocks: int = 16
    """Residual blocks in bottoms of images."""
    base_channels: int = 128
    """Channels of the first residual block."""
    members: int = 8
    """Number of nets."""
    batch_size: int = 8192
    """Rows per step."""

    def __post_init__(self) -> None:
        _check_positive(self, "limits.settings")

    def check(self, settings: RunSettings) -> None:
        """Refuse larger settings."""
        for each in fields(self):
            section = settings.train if each.name == "batch_size" else settings.net
            value, most = getattr(section, each.name), getattr(self, each.name)
            if value is not None and not 0 <= value <= most:
                raise WireError(
                    f"Begin: {each.name}: this party allows up to {most}, got {value}; lower it, "
                    f"or the party's operator can raise limits.settings.{each.name}"
                )


@dataclass(frozen=True)
class RequestLimits:
    """Limits of a party on what a coordinator may request."""

    max_runs: int = 100
    """Largest number of interactive runs with one alignment."""
    max_parameters: int = 25_000_000
    """Largest number of parameters of the party's nets."""
    max_batch_bytes: int = 2**31
    """Largest estimated memory of the copies of rows in one request, in bytes. Of images, the
    estimate counts two layers; deep nets take several times as much."""
    settings: SettingsLimits = SettingsLimits()
    """Bounds of the settings that the coordinator chooses."""
    max_epsilon: float | None = None
    """Largest ε of differential privacy of a row, over all versions of the party's encoder
    together. By default it is not limited; with it, the party takes no part in interactive
    training."""
    max_delta: float = 1e-5
    """The δ at which `max_epsilon` applies."""

    def __post_init__(self) -> None:
        _check_positive(self, "limits")
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
        self.settings.check(settings)

    def check_parameters(self, layout: Layout, settings: RunSettings) -> None:
        """Refuse nets with too many parameters."""
        count = count_parameters(layout, settings.net, settings.method, settings.privacy)
        if count > self.max_parameters:
            raise WireError(
                f"Begin: this party allows nets of {self.max_parameters} parameters, got {count}; "
                "lower `hidden_dim`, `embedding_dim` or `members`, or the party's operator can "
                "raise limits.max_parameters"
            )


UNLIMITED = RequestLimits(
    2**20, 2**40, 2**60, SettingsLimits(*[2**20] * len(fields(SettingsLimits)))
)
"""For a party that trusts the coordinator, such as the coordinator's own."""


class RunNames:
    """The runs of an alignment, each with a digest of its settings; stored in a file.

    Parameters
    ----------
    path
        File of the names.
    max_runs
        Largest number of runs.
    """

    def __init__(self, path: Path, max_runs: int) -> None:
        self._path, self._max_runs = path, max_runs

    def check(self, settings: RunSettings, training: Tensor) -> None:
        """Store the name of a run; refuse one that has other settings or training rows."""
        digests, digest = self._read(), settings_digest(settings, training)
        if digests.get(settings.run, digest) != digest:
            raise WireError(
                f"Begin: the settings or training rows of run {settings.run!r} changed; restore "
                "them, or choose another run name"
            )
        if settings.run in digests:
            return
        if len(digests) >= self._max_runs:
            raise WireError(
                f"Begin: this party allows {self._max_runs} runs with one alignment, and all were "
                "used; its operator can raise limits.max_runs"
            )
        with atomic_write(self._path) as temporary:
            temporary.write_text(json.dumps({**digests, settings.run: digest}), encoding="utf-8")

    def _read(self) -> Mapping[str, str]:
        if not self._path.is_file():
            return {}
        try:
            return {str(k): str(v) for k, v in json.loads(self._path.read_text("utf-8")).items()}
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(
                f"{self._path}: the list of runs cannot be read ({error}); restore the file, or "
                "match again with `xvfl align`"
            ) from error


def settings_digest(settings: RunSettings, training: Tensor) -> str:
    """Return a digest of a run's settings and training rows."""
    digest = blake2b(json.dumps(asdict(settings), sort_keys=True).encode(), digest_size=16)
    digest.update(training.int().numpy().tobytes())
    return digest.hexdigest()


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

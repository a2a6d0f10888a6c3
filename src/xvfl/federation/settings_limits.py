"""Bounds of a party on every setting that a coordinator sends in `Begin`.

The settings decide what the party's net computes. With a narrow hidden layer and a linear skip, an
embedding is a linear map of the features, and masked copies of rows reveal every column.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

import torch
from torch import Tensor

from xvfl.config import (
    METHOD_NAMES,
    LossConfig,
    NetConfig,
    PrivacyConfig,
)
from xvfl.errors import ConfigError, WireError, unknown
from xvfl.federation.build import build_parties
from xvfl.federation.run_settings import RunSettings
from xvfl.nets.numbers import N_FREQUENCIES
from xvfl.options import MASKING_METHODS, require_resolved
from xvfl.primitives.layout import Layout
from xvfl.wire.texts import PLAIN_NAME

Range = tuple[float, float]


@dataclass(frozen=True)
class SettingsLimits:
    """Smallest and largest value that a party accepts of each setting."""

    embedding_dim: Range = (8, 512)
    """Size of the embeddings."""
    hidden_dim: Range = (64, 1024)
    """Size of hidden layers."""
    hidden_dim_with_skip: Range = (128, 1024)
    """The same with a linear skip (`skip_rank` above 0). With few units, the embeddings of masked
    copies reveal columns to a coordinator that knows no row."""
    skip_rank: Range = (0, 64)
    """Rank of the linear skip."""
    number_embedding_dim: Range = (0, 32)
    """Size of the embedding of a number."""
    n_blocks: Range = (1, 16)
    """Residual blocks in bottoms of images."""
    base_channels: Range = (8, 128)
    """Channels of the first residual block."""
    members: Range = (1, 8)
    """Number of nets."""
    batch_size: Range = (0, 8192)
    """Rows per step; 0 = by the number of rows."""
    learning_rate: Range = (1e-5, 0.5)
    """Initial learning rate; the rate of an update may not be above it."""
    momentum: Range = (0, 0.99)
    """Momentum of `sgd`."""
    weight_decay: Range = (0, 1)
    """Weight decay."""
    completion_interval: Range = (1, 16)
    """Steps between two completions."""
    image_shift: Range = (0, 0.5)
    """Largest random shift of images."""
    reconstruction: Range = (0.01, 10)
    """Weight of the reconstruction loss, where it alone trains the nets and the method requests
    masked copies. With 0, the nets would never change."""
    unmasked_copies: Range = (0, 0.9)
    """Share of the masked copies that keep all features."""

    def __post_init__(self) -> None:
        for each in fields(self):
            given = getattr(self, each.name)
            if len(given) != 2 or not given[0] <= given[1]:
                raise ConfigError(
                    f"limits.settings.{each.name}: expected [smallest, largest], got {list(given)}"
                )


BOUNDS: dict[str, str | Literal["checked", "unused"]] = {
    "method": "checked",
    "net.embedding_dim": "embedding_dim",
    "net.hidden_dim": "hidden_dim",
    "net.n_blocks": "n_blocks",
    "net.base_channels": "base_channels",
    "net.seeing_completers": "checked",
    "net.number_embedding_dim": "number_embedding_dim",
    "net.skip_rank": "skip_rank",
    "net.members": "members",
    "train.epochs": "checked",
    "train.batch_size": "batch_size",
    "train.optimizer": "checked",
    "train.learning_rate": "learning_rate",
    "train.schedule": "unused",
    "train.momentum": "momentum",
    "train.weight_decay": "weight_decay",
    "train.page_batch_size": "unused",
    "train.page_probability": "unused",
    "train.validation_fraction": "unused",
    "train.patience": "unused",
    "train.class_weight": "unused",
    "train.completion_interval": "completion_interval",
    "train.image_shift": "image_shift",
    "train.random_state": "unused",
    "train.device": "unused",
    "train.precision": "checked",
    "reconstruction": "checked",
    "unmasked_copies": "unmasked_copies",
    "full_threshold": "checked",
    "warm": "checked",
    "payload": "checked",
    "run": "checked",
    "privacy.label_protection": "checked",
    "privacy.label_noise": "unused",
    "privacy.epsilon": "checked",
    "privacy.delta": "checked",
}
"""What bounds each setting: a range of `SettingsLimits`; `checked`: its type, which allows listed
values only, or a check of `check_settings` or `RequestLedger`; `unused`: a party ignores it. A
setting that is not listed is refused."""


def check_settings(settings: RunSettings, limits: SettingsLimits) -> None:
    """Refuse settings out of bounds, before they have any effect."""
    if settings.method not in METHOD_NAMES:
        raise WireError(f"Begin: {unknown('method', settings.method, METHOD_NAMES)}")
    for name, value in (("run", settings.run), ("warm", settings.warm or "none")):
        PLAIN_NAME.read(value, f"Begin: {name}")
    try:
        require_resolved(settings.net, settings.train, settings.privacy)
    except ConfigError as error:
        raise WireError(f"Begin: {error}") from error
    for name, value in setting_values(settings):
        bound = BOUNDS.get(name)
        if bound is None:
            raise WireError(
                f"Begin: {name}: unknown setting; install the same version of xvfl on all sides"
            )
        if bound not in ("checked", "unused") and value is not None:
            _check_range(name, value, getattr(limits, bound), bound)
    net = settings.net
    if net.skip_rank:
        _check_range(
            "net.hidden_dim", net.hidden_dim, limits.hidden_dim_with_skip, "hidden_dim_with_skip"
        )
    weight, bounds = settings.reconstruction, limits.reconstruction
    if not trains_by_reconstruction(settings):
        bounds = (0, bounds[1])
    elif settings.train.completion_interval != 1:
        raise WireError(
            "Begin: train.completion_interval: expected 1 without gradients, got "
            f"{settings.train.completion_interval}: the nets would not change in the other steps"
        )
    _check_range("reconstruction", weight, bounds, "reconstruction")


def trains_by_reconstruction(settings: RunSettings) -> bool:
    """Return whether nets train by reconstruction only, in a method that requests masked copies."""
    return settings.privacy.reconstruction_only and settings.method in MASKING_METHODS


def setting_values(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and value of every setting, such as `net.hidden_dim`."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            yield from setting_values(value, f"{prefix}{each.name}.")
        else:
            yield prefix + each.name, value


def _check_range(name: str, value: float, bounds: Range, option: str) -> None:
    low, high = bounds
    if not low <= value <= high:
        raise WireError(
            f"Begin: {name}: this party allows {low:g} to {high:g}, got {value:g}; change it, or "
            f"the party's operator can change limits.settings.{option}"
        )


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
    """Estimate the memory of one copy of a table's row in a training step; 0 for images."""
    if layout.image is not None:
        return 0
    numbers = sum(feature.kind == "numeric" for feature in layout.features)
    waves = numbers * (4 * N_FREQUENCIES + 2 * (config.number_embedding_dim or 0))
    inputs = layout.encoded + layout.raw + (waves if config.number_embedding_dim else 0)
    bottom = inputs + 4 * config.hidden_dim + 2 * config.embedding_dim
    completer = 4 * config.hidden_dim + 3 * layout.encoded
    return 4 * config.members * (bottom + completer)

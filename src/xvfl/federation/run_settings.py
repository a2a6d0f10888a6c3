"""What a coordinator tells every party about a run."""

import json
from dataclasses import dataclass

from xvfl.config import NetConfig, TrainConfig, build
from xvfl.errors import WireError
from xvfl.wire.payload import Payload


@dataclass(frozen=True)
class RunSettings:
    """What a coordinator tells every party about a run."""

    seed: int
    method: str
    """Decides which nets a party needs."""
    net: NetConfig
    """With its widths chosen."""
    train: TrainConfig
    reconstruction: float = 0.0
    """Weight of the party's own objective."""
    full_threshold: float | None = None
    """Observed share at which a row counts as full; by default the party chooses."""
    warm: str = ""
    """A finished run whose weights to begin with, where the party took part in it."""
    payload: Payload = "float32"
    """How embeddings, cues and gradients travel, both ways."""


def parse_run_settings(text: str) -> RunSettings:
    """Read a run's settings."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise WireError(f"Begin: expected settings in JSON ({error})") from error
    if not isinstance(data, dict):
        raise WireError("Begin: expected settings as a JSON object")
    settings: RunSettings = build(RunSettings, data, "settings")
    return settings

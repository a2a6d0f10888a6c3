"""Settings of a run that the coordinator sends to every party."""

from dataclasses import dataclass

from xvfl.config import NO_PROTECTION, NetConfig, PrivacyConfig, TrainConfig
from xvfl.federation.message_checks import parse_document
from xvfl.wire.texts import PLAIN_NAME


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run that the coordinator sends to every party."""

    method: str
    """Decides which nets a party needs."""
    net: NetConfig
    """With resolved widths."""
    train: TrainConfig
    """Without `random_state`: a party has a secret of its own."""
    reconstruction: float = 0.0
    """Weight of the reconstruction loss, which each party computes itself."""
    unmasked_copies: float | None = 0.0
    """Share of the masked copies that keep all features; None = the party chooses."""
    full_threshold: float | None = None
    """Observed share at which a row counts as full; None = the party chooses."""
    run: str = ""
    """Name of the run; a party derives its random numbers from it and from its secret."""
    privacy: PrivacyConfig = NO_PROTECTION
    """Whether embeddings are bounded."""


def parse_run_settings(text: str) -> RunSettings:
    """Parse a run's settings from JSON."""
    settings: RunSettings = parse_document(RunSettings, text, "Begin: settings")
    if settings.run:
        PLAIN_NAME.read(settings.run, "Begin: run")
    return settings

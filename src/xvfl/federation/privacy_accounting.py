"""Differential privacy of a row's released embeddings: the noise for an ε, and the ε of releases.

The accountant is Opacus's `PRVAccountant`; its ε is an upper bound. Opacus describes a Gaussian
mechanism by its noise multiplier, the standard deviation of the noise over the L2 sensitivity.
Without subsampling (sample rate 1) this covers every adjacency: only the sensitivity differs.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from xvfl.config import EncoderConfig, PrivacyConfig
from xvfl.errors import ConfigError

ADJACENCY = "replace all features of one row at one party"
PROTECTED_FROM = "the coordinator, the other parties and everybody who receives the model"
SENSITIVITY = 2.0
"""Largest L2 distance between two embeddings of norm 1."""
EPSILON_ERROR = 0.001
"""Error bound of the accountant; its ε includes it."""
EPSILON_TOLERANCE = 0.005
"""Largest difference between the requested ε and the ε of the noise, which is smaller."""
Release = tuple[float, int]
"""A noise multiplier, and the number of releases of a row with it."""


@dataclass(frozen=True)
class PrivacyStatement:
    """What a run guarantees for each row of each party, in training and in prediction."""

    epsilon: float
    delta: float
    n_releases: int
    """Number of noisy embeddings of a row that leave the party; repetitions are identical."""
    noise_multiplier: float
    """Standard deviation of the noise over the sensitivity."""
    noise_std: float
    """Standard deviation of the noise on each number of an embedding of norm 1."""
    sensitivity: float = SENSITIVITY
    adjacency: str = ADJACENCY
    protected_from: str = PROTECTED_FROM
    mechanism: str = "Gaussian, drawn once for each row"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return dict(vars(self))

    def without_noise(self) -> "PrivacyStatement":
        """Return the same releases without noise: no privacy, for a party alone and for tests."""
        return replace(self, noise_multiplier=0.0, noise_std=0.0)

    def status(self) -> dict[str, Any]:
        """Return the entries of a status."""
        return {f"privacy_{name}": value for name, value in self.to_dict().items()}

    def __str__(self) -> str:
        return (
            f"differential privacy: ε = {self.epsilon:g}, δ = {self.delta:g} for each row at each "
            f"party ({self.adjacency}); {self.n_releases} releases of a row, noise "
            f"{self.noise_std:.3g} on embeddings of norm 1"
        )


def state_privacy(privacy: PrivacyConfig | EncoderConfig) -> PrivacyStatement | None:
    """Calibrate the noise of the one release of a row; None without differential privacy."""
    if privacy.epsilon is None:
        return None
    multiplier = calibrate(privacy.epsilon, privacy.delta, 1)
    return PrivacyStatement(privacy.epsilon, privacy.delta, 1, multiplier, multiplier * SENSITIVITY)


@cache
def calibrate(epsilon: float, delta: float, n_releases: int) -> float:
    """Return the smallest noise multiplier for which this many releases of a row satisfy (ε, δ)."""
    find_multiplier = _opacus().utils.get_noise_multiplier
    with warnings.catch_warnings():
        # Opacus first estimates the range of ε by another accountant, which warns.
        warnings.simplefilter("ignore")
        multiplier: float = find_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=1.0,
            steps=n_releases,
            accountant="prv",
            epsilon_tolerance=EPSILON_TOLERANCE,
            eps_error=EPSILON_ERROR,
        )
    return multiplier


def composed_epsilon(releases: Sequence[Release], delta: float) -> float:
    """Return an upper bound of the ε of all releases of a row together."""
    accountant = _opacus().PRVAccountant()
    accountant.history = [(multiplier, 1.0, count) for multiplier, count in releases]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta, eps_error=EPSILON_ERROR))


def _opacus() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus import accountants
    except ImportError as error:
        raise ConfigError(
            'epsilon: differential privacy needs Opacus; run `pip install "xvfl[dp]"`'
        ) from error
    return accountants

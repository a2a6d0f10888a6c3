"""Findings about interactive training: what each attack reached, with and without protection."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Metric = Literal["AUC", "R²", "accuracy", "rows"]
METRIC_NAMES: dict[Metric, str] = {
    "AUC": "AUC",
    "R²": "R² of numbers",
    "accuracy": "accuracy of categories",
    "rows": "share of rows recovered exactly",
}
SMALL_GAIN = 0.03
"""Difference up to which an attack adds nothing to what the attacker has anyway."""


@dataclass(frozen=True)
class Reached:
    """What one attack reached in one simulation."""

    value: float
    without_federation: float
    """What the same attacker reaches with its own data alone."""
    chance: float
    """What a guess without any data reaches."""


@dataclass(frozen=True)
class Key:
    """One attack by one participant, measured by one metric."""

    attack: str
    attacker: str
    """`coordinator`, or the name of a party."""
    target: str
    """`labels`, or the party whose features are attacked."""
    metric: Metric


@dataclass(frozen=True)
class Finding:
    """What one attack reached in both simulations."""

    key: Key
    chance: float
    without_federation: float
    unprotected: float
    protected: float

    @property
    def verdict(self) -> Literal["blocked", "no gain", "gain"]:
        """What the configured protection leaves to the attacker."""
        if self.protected > max(self.chance, self.without_federation) + SMALL_GAIN:
            return "gain"
        helped = self.unprotected > self.protected + SMALL_GAIN
        return "blocked" if helped and self.protected <= self.chance + SMALL_GAIN else "no gain"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form."""
        figures = asdict(self)
        return {**figures.pop("key"), **figures, "verdict": self.verdict}


def combine(protected: dict[Key, Reached], unprotected: dict[Key, Reached]) -> list[Finding]:
    """Pair the results of both simulations; keep attacks that both have."""
    return [
        Finding(key, each.chance, each.without_federation, unprotected[key].value, each.value)
        for key, each in protected.items()
        if key in unprotected
    ]


def worst_by_attack(findings: list[Finding]) -> list[Finding]:
    """Keep, for each attack and metric, the finding with the largest gain of the attacker."""
    worst: dict[tuple[str, str], Finding] = {}
    for each in findings:
        group = each.key.attack, each.key.metric
        if group not in worst or _gain(each) > _gain(worst[group]):
            worst[group] = each
    return list(worst.values())


def _gain(finding: Finding) -> float:
    return finding.protected - max(finding.chance, finding.without_federation)

"""Audit a party's upload before it is sent: attack it with every setting of the dials."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from xvfl.audit.dials import CONFIGURED, default_dials
from xvfl.audit.recovery import Measured
from xvfl.audit.sweep import DialResult, Report, SweepOptions, UploadScenario, sweep
from xvfl.audit.upload_attacks import AttackOptions
from xvfl.audit.upload_heads import HeadOptions
from xvfl.federation.upload.encoder_net import encoder_net_config
from xvfl.primitives.layout import any_image
from xvfl.training.threads import limit_threads

NOTHING_KNOWN = ("ICA", "PCA", "differences, ICA", "differences, clusters")
"""Attacks on the upload alone."""
MAX_HEAD_EPOCHS = 60
"""Default number of epochs of heads in a federation."""


@dataclass(frozen=True)
class UploadAuditOptions:
    """Strength of the attacks, and how long nets are trained."""

    attacks: AttackOptions = AttackOptions(
        draws=2, max_rows=2500, max_components=100, max_differences=5000, inversion_steps=25
    )
    encoder_steps: int = 300
    """Largest number of steps of an encoder; it is trained for every dial that changes it."""
    head_steps: int = 200
    """Largest number of steps of heads."""
    batch_size: int = 256
    """Batch size of encoders and heads, unless it is configured."""
    quick: bool = False
    """Fewer dials."""


QUICK_UPLOAD = UploadAuditOptions(
    AttackOptions(draws=1, max_rows=1000, max_components=64, inversion_rows=32, inversion_steps=10),
    encoder_steps=40,
    head_steps=40,
    batch_size=128,
    quick=True,
)


@dataclass(frozen=True)
class UploadResult:
    """What attacks reach with every setting, and what was simulated."""

    results: list[DialResult]
    about: dict[str, Any]

    def of(self, dial: str) -> DialResult:
        """Return the result of a setting."""
        return next(each for each in self.results if each.dial == dial)

    @property
    def configured(self) -> DialResult:
        """The party's own configuration."""
        return self.of(CONFIGURED)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form."""
        return {**self.about, "results": [each.to_dict() for each in self.results]}


def audit_upload(
    scenario: UploadScenario,
    options: UploadAuditOptions | None = None,
    report: Report = lambda text, share: None,
) -> UploadResult:
    """Train encoders, compute uploads, and attack them with every setting of the dials.

    Encoders and heads are trained for fewer steps than in a federation, the same number with all
    settings.
    """
    options, started = options or UploadAuditOptions(), time.monotonic()
    encoders = {}
    for name, config in scenario.encoders.items():
        batch = config.batch_size or options.batch_size
        epochs = _epochs(options.encoder_steps, len(scenario.learned[name]), batch)
        encoders[name] = replace(config, epochs=min(config.epochs, epochs), batch_size=batch)
    layouts = {name: table.layout for name, table in scenario.tables.items()}
    image, first = any_image(layouts), next(iter(encoders.values()))
    dials = default_dials(first, image, options.quick)
    rows = 1 if scenario.split is None else len(scenario.split.training)
    epochs = min(_epochs(options.head_steps, rows, options.batch_size), MAX_HEAD_EPOCHS)
    heads = HeadOptions(epochs=epochs, batch_size=options.batch_size)
    chosen = SweepOptions(options.attacks, heads)
    with limit_threads(image, torch.device("cpu")):
        results = sweep(replace(scenario, encoders=encoders), dials, chosen, "cpu", report)
    net = encoder_net_config(first)
    about = {
        "parties": {name: len(table) for name, table in scenario.tables.items()},
        "held_out": {n: len(t) - len(scenario.learned[n]) for n, t in scenario.tables.items()},
        "encoder": {
            "embedding_dim": net.embedding_dim,
            "masked_copies": first.copies,
            "skip_rank": net.skip_rank,
            "epochs": first.epochs,
            "epsilon": first.epsilon,
        },
        "task": None if scenario.split is None else scenario.split.task.kind,
        "seconds": round(time.monotonic() - started, 1),
    }
    return UploadResult(results, about)


def _epochs(steps: int, rows: int, batch_size: int) -> int:
    """Return the number of epochs with about this number of steps."""
    return -(-steps // max(rows // batch_size, 1))


@dataclass(frozen=True)
class Recovery:
    """Recovery of columns by the strongest of some attacks, the mean over the parties."""

    value: float
    control: float


def recovery(result: DialResult, attacks: Sequence[str]) -> Recovery | None:
    """Return what the strongest of some attacks recovers of each party; the mean over parties.

    Of numbers, or of categories if a party has none; None if the attacks were not possible.
    """
    strongest = []
    for measured in result.measured.values():
        found = [each for each in measured if each.attack in attacks]
        kinds = [[m for m in found if m.metric == kind] for kind in ("numbers", "categories")]
        if kinds[0] or kinds[1]:
            strongest.append(max(kinds[0] or kinds[1], key=lambda each: each.excess))
    return _mean(strongest)


def _mean(measured: Sequence[Measured]) -> Recovery | None:
    if not measured:
        return None
    values = (sum(getattr(m, name) for m in measured) for name in ("value", "control"))
    return Recovery(*(each / len(measured) for each in values))

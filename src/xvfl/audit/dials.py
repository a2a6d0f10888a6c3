"""Settings of an upload (dials), and how they change the uploaded views. Needs torch only.

Shapes: n rows, c masked copies, d embedding width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from xvfl.config import EncoderConfig

Transform = Callable[[Tensor, torch.Generator], Tensor]
"""Changes the views (n, 1 + c, d) of a party, with its secret random numbers."""
CONFIGURED = "configured"
REFERENCE = EncoderConfig(
    masked_copies=8,
    embedding_dim=256,
    hidden_dim=256,
    number_embedding_dim=0,
    skip_rank=64,
    whitening=0.0,
)
"""The default encoder of version 0.3.0. It sent new masked copies in every step: at least 8 of a
row."""


@dataclass(frozen=True)
class Dial:
    """One setting of one dial."""

    name: str
    value: str = ""
    encoder: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the party's `EncoderConfig`."""
    transform: Transform | None = None
    """Change of the views."""
    invertible: bool = False
    """Whether the transform is a map that an attacker would steal together with the encoder; the
    attack with a stolen encoder is then left out."""

    def __str__(self) -> str:
        return f"{self.name} {self.value}".strip()


def rotate(views: Tensor, rng: torch.Generator) -> Tensor:
    """Apply a secret rotation, scaled so that all numbers stay in [-1, 1]."""
    turned = views.float() @ _orthogonal(views.shape[-1], rng).to(views.device)
    return turned / turned.abs().max().clamp(min=1e-9)


def project(width: int) -> Transform:
    """Keep `width` numbers of a secret rotation."""
    return lambda views, rng: rotate(views, rng)[..., :width]


def add_noise(share: float) -> Transform:
    """Add Gaussian noise of a share of the embeddings' standard deviation to every view."""

    def transform(views: Tensor, rng: torch.Generator) -> Tensor:
        noise = torch.randn(views.shape, generator=rng).to(views.device)
        return (views + share * views.float().std() * noise).clamp(-1, 1)

    return transform


def quantize(levels: int) -> Transform:
    """Round to equally spaced numbers between the smallest and the largest of each dimension."""

    def transform(views: Tensor, rng: torch.Generator) -> Tensor:
        plain = views[:, 0].float()
        low, high = plain.amin(0), plain.amax(0)
        step = (high - low).clamp(min=1e-6) / (levels - 1)
        return (((views.float() - low) / step).round().clamp(0, levels - 1) * step + low).clamp(
            -1, 1
        )

    return transform


def drop_numbers(share: float) -> Transform:
    """Set a random share of the numbers of every view to 0."""

    def transform(views: Tensor, rng: torch.Generator) -> Tensor:
        return views * (torch.rand(views.shape, generator=rng) >= share).to(views.device)

    return transform


def _orthogonal(d: int, rng: torch.Generator) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(d, d, generator=rng))
    turned: Tensor = q * r.diagonal().sign()
    return turned


def default_dials(config: EncoderConfig, image: bool = False, quick: bool = False) -> list[Dial]:
    """Return the configured upload, that of version 0.3.0, and settings of every dial around it."""
    copies, widths = ((0,), (16,)) if quick else ((0, 1), (16, 64))
    noises, levels, kept = ((0.5,), (4,), (16,)) if quick else ((0.5, 1.0), (4,), (32,))
    reference = {name: getattr(REFERENCE, name) for name in REFERENCE_FIELDS}
    dials = [Dial(CONFIGURED), Dial("0.3.0", encoder=reference)]
    learns = config.epsilon is None
    dials += [
        Dial("copies", str(n), {"masked_copies": n})
        for n in copies
        if learns and n != config.copies
    ]
    dials += [
        Dial("width", str(d), {"embedding_dim": d}) for d in widths if d != config.embedding_dim
    ]
    if learns and not image:
        rank = 64 if config.skip_rank == 0 else 0
        dials.append(Dial("skip rank", str(rank), {"skip_rank": rank}))
    if learns:
        shares = ((0.0,) if image else (0.9,)) if quick else ((0.0, 0.9) if image else (0.5, 0.9))
        dials += [Dial("whitening", f"{share:g}", {"whitening": share}) for share in shares]
    dials.append(Dial("rotation", transform=rotate, invertible=True))
    dials += [Dial("projection", str(d), transform=project(d), invertible=True) for d in kept]
    dials += [Dial("noise", f"{share:g}", transform=add_noise(share)) for share in noises]
    dials += [Dial("levels", str(n), transform=quantize(n)) for n in levels]
    dials += [Dial("dropout", f"{share:g}", transform=drop_numbers(share)) for share in (0.5,)]
    return dials


REFERENCE_FIELDS = (
    "masked_copies",
    "embedding_dim",
    "hidden_dim",
    "number_embedding_dim",
    "skip_rank",
    "whitening",
    "epsilon",
)
"""Fields in which `REFERENCE` replaces a party's configuration."""

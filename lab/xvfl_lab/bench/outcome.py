"""What a bench found: lines of figures, and how they stand to what was promised."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from xvfl.version import VERSION


@dataclass(frozen=True)
class Line:
    """One figure, and what it is next to another of the same run."""

    section: str
    case: str
    contender: str
    value: float
    unit: str = "ms"
    ratio: float | None = None
    to: str = ""
    """Whose figure the ratio is of."""

    def cells(self) -> tuple[str, ...]:
        """Give the line as texts."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} × {self.to}"
        return (self.section, self.case, self.contender, f"{self.value:.4g} {self.unit}", ratio)


@dataclass(frozen=True)
class Claim:
    """A ratio that was promised."""

    what: str
    value: float
    target: float
    at_least: bool

    @property
    def met(self) -> bool:
        """Say whether it holds."""
        return self.value >= self.target if self.at_least else self.value <= self.target

    def cells(self) -> tuple[str, ...]:
        """Give the claim as texts."""
        bound = f"{'≥' if self.at_least else '≤'} {self.target:g}"
        return (self.what, f"{self.value:.3g}", bound, "yes" if self.met else "no")


@dataclass(frozen=True)
class Outcome:
    """What some sections found."""

    lines: tuple[Line, ...] = ()
    claims: tuple[Claim, ...] = ()

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(self.lines + other.lines, self.claims + other.claims)

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        found = {
            "xvfl": VERSION,
            "torch": torch.__version__,
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "gpu": gpu,
            "threads of tables": 1,
            "lines": [asdict(line) for line in self.lines],
            "claims": [{**asdict(claim), "met": claim.met} for claim in self.claims],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


LINES = ("section", "case", "contender", "median", "ratio")
CLAIMS = ("promised", "measured", "bound", "met")


def text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table in plain text."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join(lines)

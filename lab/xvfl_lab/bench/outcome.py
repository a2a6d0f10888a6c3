"""Results of benchmarks: measurements, and targets that they meet or miss."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from xvfl.version import VERSION
from xvfl_lab.experiments.dispatch import hardware
from xvfl_lab.files import write_text


@dataclass(frozen=True)
class Line:
    """One measurement, and its ratio to another of the same run."""

    section: str
    case: str
    contender: str
    value: float
    unit: str = "ms"
    ratio: float | None = None
    to: str = ""
    """The contender that the ratio refers to."""

    def cells(self) -> tuple[str, ...]:
        """Format the measurement."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} × {self.to}"
        return (self.section, self.case, self.contender, f"{self.value:.4g} {self.unit}", ratio)


@dataclass(frozen=True)
class Claim:
    """A target for a measured value."""

    what: str
    value: float
    target: float
    at_least: bool

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value >= self.target if self.at_least else self.value <= self.target

    def cells(self) -> tuple[str, ...]:
        """Format the target."""
        bound = f"{'≥' if self.at_least else '≤'} {self.target:g}"
        return (self.what, f"{self.value:.3g}", bound, "yes" if self.met else "no")


@dataclass(frozen=True)
class Outcome:
    """Results of some sections."""

    lines: tuple[Line, ...] = ()
    claims: tuple[Claim, ...] = ()

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(self.lines + other.lines, self.claims + other.claims)

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        record = {
            "xvfl": VERSION,
            "torch": torch.__version__,
            "machine": hardware("cpu"),
            "gpu": hardware("cuda") if torch.cuda.is_available() else None,
            "threads of tables": 1,
            "lines": [asdict(line) for line in self.lines],
            "claims": [{**asdict(claim), "met": claim.met} for claim in self.claims],
        }
        write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


LINES = ("section", "case", "contender", "median", "ratio")
CLAIMS = ("target", "measured", "bound", "met")


def text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table in plain text."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join(lines)

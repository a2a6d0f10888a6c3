"""Tests of the packs: they run where XVFL_DATA holds them."""

import os
from pathlib import Path

import pytest

PACKS = Path(os.environ.get("XVFL_DATA", "")) / "tabular"
needs_packs = pytest.mark.skipif(
    not os.environ.get("XVFL_DATA") or not PACKS.is_dir(), reason="XVFL_DATA holds no packs"
)

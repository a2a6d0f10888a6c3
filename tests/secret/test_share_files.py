"""Splitting and combining arrays of files."""

from pathlib import Path

import numpy as np
import pytest

from tests.secret.three_nodes import needs_spu, run, split

pytestmark = needs_spu


def test_shares_are_combined_and_contradicting_ones_rejected(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(-4, 4, (7, 3)).astype(np.float32)
    files = [folder / "values.npy" for folder in split(tmp_path, {"values": values})]
    out = tmp_path / "combined.npy"
    assert run("combine", *files, "--out", out).returncode == 0
    assert np.abs(np.load(out) - values).max() < 2.0**-20
    changed = np.load(files[1])
    changed[2, 1, 0] += np.uint64(1)
    np.save(files[1], changed)
    done = run("combine", *files, "--out", out)
    assert done.returncode == 2 and "contradict each other" in done.stderr


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**13])
def test_numbers_that_do_not_fit_are_rejected(tmp_path: Path, value: float) -> None:
    (tmp_path / "given").mkdir()
    np.save(tmp_path / "given" / "x.npy", np.full((2, 2), value, np.float32))
    done = run("split", tmp_path / "given", tmp_path / "out")
    assert done.returncode == 2 and "expected finite numbers" in done.stderr

"""The secret of a process: created once, private, never sent."""

import stat
from pathlib import Path

import pytest

from xvfl.errors import RunError
from xvfl.model.run_dir import RunDir
from xvfl.service.secret import SECRET, load_secret, run_seed


def test_the_secret_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    secret = load_secret(folder)
    assert len(secret) == 32 and load_secret(folder) == secret
    assert stat.S_IMODE((tmp_path / SECRET).stat().st_mode) == 0o600
    other = RunDir(tmp_path / "other").create()
    assert load_secret(other) != secret


def test_runs_and_secrets_have_seeds_of_their_own(tmp_path: Path) -> None:
    secret = load_secret(RunDir(tmp_path))
    seeds = {run_seed(secret, "a"), run_seed(secret, "b"), run_seed(bytes(32), "a")}
    assert len(seeds) == 3 and all(seed.bit_length() == 256 for seed in seeds)


@pytest.mark.parametrize("content", ["", "zz", "00" * 16])
def test_a_damaged_secret_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / SECRET).write_text(content)
    (tmp_path / SECRET).chmod(0o600)
    with pytest.raises(RunError, match="restore it"):
        load_secret(RunDir(tmp_path))


def test_a_secret_that_others_can_read_is_rejected(tmp_path: Path) -> None:
    load_secret(RunDir(tmp_path))
    (tmp_path / SECRET).chmod(0o644)
    with pytest.raises(RunError, match="chmod 600"):
        load_secret(RunDir(tmp_path))

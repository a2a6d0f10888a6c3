"""`xvfl upload` and `xvfl withdraw` between folders that share no network."""

import shutil
from pathlib import Path

import pytest

from tests.command_line import rejected_with, run_xvfl
from tests.upload.file_federation import FileFederation
from tests.upload.local_federation import PARTIES

COORDINATOR = """
listen = "localhost:1"
parties = ["bank", "shop"]
state_dir = "coordinator"
revocation_list = "certs/ca.crl"
signing_key = "certs/coordinator.release.key"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "id"
column = "y"
"""
PARTY = """
coordinator = "localhost:1"
table = "NAME.csv"
id_column = "id"
state_dir = "NAME"
revocation_list = "certs/ca.crl"
release_key = "certs/coordinator.release.pub"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/NAME.crt"
private_key = "certs/NAME.key"
[encoder]
epochs = 1
embedding_dim = 8
hidden_dim = 16
masked_copies = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a matched federation, with configurations."""
    made = FileFederation(tmp_path)
    made.close()
    (tmp_path / "coordinator.toml").write_text(COORDINATOR)
    for name in PARTIES:
        (tmp_path / f"{name}.toml").write_text(PARTY.replace("NAME", name))
    return tmp_path


@pytest.mark.slow
def test_an_upload_and_a_withdrawal_travel_as_files(folder: Path) -> None:
    coordinator, bank = folder / "coordinator.toml", folder / "bank.toml"
    listed, upload, leaving = folder / "bank.heldout", folder / "bank.upload", folder / "leaving"
    assert "not trained yet" in rejected_with("upload", "new-version", bank)
    done = run_xvfl("upload", "held-out", coordinator, "--party", "bank", "--out", listed)
    assert done.code == 0 and "held-out rows of bank" in done.out
    assert "unknown party" in rejected_with(
        "upload", "held-out", coordinator, "--party", "x", "--out", listed
    )
    done = run_xvfl("upload", "export", bank, "--held-out", listed, "--out", upload)
    assert done.code == 0 and "version 1, 240 rows" in done.out
    assert "encoder_trained" in done.err
    done = run_xvfl("upload", "import", coordinator, upload)
    assert done.code == 0 and "stored version 1 of bank: 240 rows" in done.out

    leaving.write_text("r1\nr2\nbank 3\n")
    assert "expected one of" in rejected_with("withdraw", bank, "--all", "--version", 1)
    assert "no reply of the coordinator" in rejected_with("withdraw", bank, "--all")
    done = run_xvfl("withdraw", bank, "--ids", leaving, "--out", folder / "w")
    assert done.code == 0 and "withdrawn so far: 2 of the rows" in done.out
    done = run_xvfl("upload", "import", coordinator, folder / "w")
    assert done.code == 0 and "deleted what bank withdrew" in done.out
    done = run_xvfl("withdraw", bank, "--receipt", folder / "w.receipt")
    assert done.code == 0 and "deleted 2 rows" in done.out and not done.err

    done = run_xvfl("upload", "new-version", bank)
    assert done.code == 0 and "version 2" in done.out
    done = run_xvfl("upload", "export", bank, "--held-out", listed, "--out", upload)
    assert done.code == 0 and "version 2" in done.out
    done = run_xvfl("upload", "import", coordinator, upload)
    assert done.code == 0 and "stored version 2" in done.out


def test_a_release_is_installed_from_a_file(tmp_path: Path) -> None:
    made = FileFederation(tmp_path)
    made.run(release_to=("shop",))
    made.close()
    (tmp_path / "shop.toml").write_text(PARTY.replace("NAME", "shop"))
    shutil.rmtree(tmp_path / "shop/bundle", ignore_errors=True)
    (tmp_path / "shop/release.json").unlink(missing_ok=True)
    release = tmp_path / "coordinator/releases/shop.release"
    done = run_xvfl("install", tmp_path / "shop.toml", release)
    assert done.code == 0 and "installed release" in done.out
    assert (tmp_path / "shop/bundle/model.safetensors").is_file()

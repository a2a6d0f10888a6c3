"""`xvfl check` finds what would stop a process, and changes nothing."""

import shutil
import socket
import time
from pathlib import Path

import pytest

from tests.service.test_service import SHOP, write
from xvfl.certs import open_authority
from xvfl.cli.check_command import check
from xvfl.errors import RunError
from xvfl.service.config import load_coordinator_config
from xvfl.service.listener import listen
from xvfl.system.event_log import EventLog
from xvfl.wire.messages import Proof


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with tables, certificates, and both configurations."""
    write(tmp_path)
    (tmp_path / "shop.toml").write_text(SHOP.replace("PORT", "1"))
    return tmp_path


def failed(config: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(RunError) as caught:
        check(config)
    capsys.readouterr()
    return str(caught.value).partition("failed: ")[2].partition(";")[0]


def test_a_coordinator_that_can_start(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    check(folder / "coordinator.toml")
    out = capsys.readouterr().out
    assert "240 rows" in out and "days left" in out and "failed" not in out
    assert sorted(folder.rglob("*")) == before


def test_callers_and_their_rights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, tokens = folder / "coordinator.toml", folder / "tokens"
    config.write_text('status_tokens = "tokens"\n' + config.read_text())
    tokens.write_text(f"ann {32 * 'a'} release,look\n")
    tokens.chmod(0o600)
    check(config)
    out = capsys.readouterr().out
    assert "ann: look, release" in out and "aaa" not in out and "on the network" not in out
    tokens.chmod(0o640)
    check(config)
    assert "other users can read it" in " ".join(capsys.readouterr().out.split())
    tokens.write_text("ann a look\n")
    assert failed(config, capsys) == "status_tokens"


def test_what_would_stop_a_coordinator(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, certs = folder / "coordinator.toml", folder / "certs"
    (folder / "labels.csv").rename(folder / "moved.csv")
    shutil.copy(certs / "shop.key", certs / "coordinator.key")
    with socket.create_server(("127.0.0.1", 0)) as used:
        text = config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{used.getsockname()[1]}")
        config.write_text(text)
        assert failed(config, capsys) == "labels, private_key, listen, status_address"
    open_authority(certs).revoke("coordinator")
    assert "revocation_list" in failed(config, capsys)


def test_a_party_learns_why_it_would_not_be_accepted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, log = folder / "shop.toml", EventLog(folder, "coordinator", show=False)
    (folder / "main").mkdir()
    (folder / "main/release.pub").touch()
    check(shop)
    assert "no answer; it is not running" in " ".join(capsys.readouterr().out.split())
    with listen(load_coordinator_config(folder / "coordinator.toml"), log) as server:
        shop.write_text(SHOP.replace("PORT", str(server.port)))
        check(shop)
        assert "has proved its own" in " ".join(capsys.readouterr().out.split())
        ahead = lambda *fields: Proof(*fields, time.time() + 7200)  # noqa: E731
        monkeypatch.setattr("xvfl.wire.server.Proof", ahead)
        check(shop)
        said = " ".join(capsys.readouterr().out.split())
        assert "the coordinator's clock is 7,200 s ahead of this one" in said
        stranger = SHOP.replace("PORT", str(server.port)).replace("certs/shop", "certs/stranger")
        shop.write_text(stranger)
        assert failed(shop, capsys) == "coordinator"


def test_tables_of_predictions_are_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are needed after the training only, when nobody looks any more."""
    (folder / "main").mkdir()
    (folder / "main" / "release.pub").touch()
    ids = 'ids = "shop.csv"\naddress = "127.0.0.1:0"\n'
    for name, lines in (("coordinator", ids), ("shop", 'table = "shop.csv"\n')):
        config, option = folder / f"{name}.toml", f"prediction.{lines.partition(' ')[0]}"
        text = f"{config.read_text()}[prediction]\n{lines}"
        config.write_text(text)
        check(config)
        assert option in capsys.readouterr().out
        config.write_text(text.removesuffix(lines) + lines.replace("shop.csv", "none.csv"))
        assert failed(config, capsys) == option

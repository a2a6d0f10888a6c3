"""State folders are private to the user of the process; readable secrets are reported."""

import os
import stat
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.security.federation_files import start, wait_for, write_files, write_party
from tests.wire.transport_helpers import run_server, wait_until
from xvfl.service.config import PartyProcessConfig
from xvfl.service.state_dir import OWN, open_state_dir
from xvfl.system.event_log import read_log
from xvfl.wire.messages import End
from xvfl.wire.tls import Tls


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_of_others_in_a_state_folder_are_left_alone(tmp_path: Path) -> None:
    """As with `state_dir = "."`, or with a folder that others use."""
    others = [tmp_path / "table.csv", tmp_path / ".git" / "config", tmp_path / "package.json"]
    names = ("run.json", "log.jsonl.1.gz", "prediction/requests-2026-01-01.jsonl")
    own = [tmp_path / name for name in names]
    for file in (*others, *own):
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
        file.chmod(0o644)
    for folder in (tmp_path, tmp_path / ".git", tmp_path / "prediction"):
        folder.chmod(0o755)
    tls = Tls("ca.crt", "shop.crt", str(tmp_path / "shop.key"))
    config = PartyProcessConfig("localhost:1", "shop.csv", tls, state_dir=str(tmp_path))
    before = os.umask(0o022)
    try:
        for _ in range(2):
            open_state_dir(config, "shop", show=False)
    finally:
        os.umask(before)
    assert {mode(each) for each in others} == {0o644}
    assert mode(tmp_path) == mode(tmp_path / ".git") == 0o755
    assert {mode(each) for each in (*own, tmp_path / "log.jsonl")} == {0o600}
    assert mode(tmp_path / "prediction") == 0o700
    events = [each for each in read_log(tmp_path) if each["event"] == "state_dir_shared"]
    assert [each["files"] for each in events] == 2 * [[".git", "package.json", "table.csv"]]


def check_private(folder: Path) -> None:
    """Check that a folder and all that is in it are private."""
    inside = list(folder.rglob("*"))
    assert inside and mode(folder) == 0o700
    for path in inside:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


def run_party(folder: Path) -> str:
    """Run a party until a coordinator ends it; return its standard error."""
    with run_server(folder / "certs", ["shop"]) as server:
        write_party(folder, server.port)
        shop = start(folder, "party", "shop.toml")
        try:
            transport = server.transports["shop"]
            wait_until(lambda: transport.hello() or shop.poll() is not None)
            transport.request(End(1, "finished")).result(300)
            _, err = shop.communicate(timeout=300)
        finally:
            shop.kill()
    assert shop.returncode == 0, err
    return err


@pytest.mark.slow
def test_a_party_keeps_its_state_private_and_tightens_what_it_finds(tmp_path: Path) -> None:
    write_files(tmp_path)
    old = tmp_path / "shop" / "prediction"
    old.mkdir(parents=True)
    files = [old / "requests-2026-01-01.jsonl", tmp_path / "shop" / "run.json"]
    for file in files:
        file.write_text("{}\n")
        file.chmod(0o644)
    for folder in (old, old.parent):
        folder.chmod(0o755)
    (tmp_path / "certs" / "shop.key").chmod(0o644)
    err = run_party(tmp_path)
    check_private(tmp_path / "shop")
    events = {each["event"]: each for each in read_log(tmp_path / "shop")}
    assert events["state_made_private"]["files"] == 4
    assert events["secret_readable"]["file"] == str(tmp_path / "certs" / "shop.key")
    assert "chmod 600" in err


@pytest.mark.slow
def test_a_coordinator_and_a_party_that_train_keep_their_state_private(tmp_path: Path) -> None:
    write_files(tmp_path)
    text = '[train]\nepochs = 2\nbatch_size = 16\ndevice = "cpu"\n'
    text += "[net]\nembedding_dim = 32\nhidden_dim = 128\n"
    with (tmp_path / "coordinator.toml").open("a") as file:
        file.write(text)
    main = start(tmp_path, "coordinator", "coordinator.toml")
    address = str(wait_for(tmp_path / "main", "listening", main)["address"])
    write_party(tmp_path, int(address.rpartition(":")[2]))
    shop = start(tmp_path, "party", "shop.toml")
    try:
        for process in (main, shop):
            _, err = process.communicate(timeout=600)
            assert process.returncode == 0, err
    finally:
        main.kill()
        shop.kill()
    for name in ("main", "shop"):
        check_private(tmp_path / name)
        events = {each["event"] for each in read_log(tmp_path / name)}
        assert not events & {"state_made_private", "state_not_private", "secret_readable"}
        # A second start knows all that the first one has written.
        written = os.listdir(tmp_path / name)
        assert not [each for each in written if not any(fnmatch(each, own) for own in OWN)]

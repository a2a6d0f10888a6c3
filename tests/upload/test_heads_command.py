"""`xvfl heads` on real state folders: list, show, use and retire heads."""

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.command_line import CommandResult, rejected_with, run_xvfl
from tests.upload.file_federation import FileFederation
from tests.upload.test_withdrawal import rows
from xvfl.errors import RunError
from xvfl.model.run_dir import MODEL, RunDir
from xvfl.service.release_store import ReleaseStore
from xvfl.service.uploads.withdrawals import withdraw
from xvfl.system.event_log import read_log
from xvfl.system.locks import file_lock, is_locked


class Heads(FileFederation):
    """A federation with a configuration file of the coordinator."""

    def command(self, name: str, *arguments: object) -> CommandResult:
        """Run a command of `xvfl heads`."""
        return run_xvfl("heads", name, self.file, *arguments)

    def refused(self, name: str, *arguments: object) -> str:
        """Run a command that is refused; return the error."""
        return rejected_with("heads", name, self.file, *arguments)

    def listed(self) -> dict[int, dict[str, Any]]:
        """Return what `xvfl heads list` says of each head."""
        return {each["number"]: each for each in json.loads(self.command("list", "--json").out)}

    def states(self) -> dict[int, str]:
        """Return the state of each head."""
        return {number: each["state"] for number, each in self.listed().items()}

    @property
    def file(self) -> Path:
        """The configuration file."""
        certs, path = self.certs, self.folder / "coordinator.toml"
        path.write_text(
            f"""
            listen = "127.0.0.1:0"
            parties = ["bank", "shop"]
            state_dir = "{self.coordinator.path}"
            signing_key = "{certs}/coordinator.release.key"
            [tls]
            ca_certificate = "{certs}/ca.crt"
            certificate = "{certs}/coordinator.crt"
            private_key = "{certs}/coordinator.key"
            [labels]
            table = "{self.folder}/labels.csv"
            id_column = "id"
            column = "y"
            """
        )
        return path

    def abort(self) -> None:
        """Start to train another head, and stop after an epoch."""
        number = max(self.states(), default=0) + 1
        head = RunDir(self.coordinator / f"heads/{number}")

        class Now(Event):
            def is_set(self) -> bool:
                return len(head.records()) == 1

        assert self.run(Now(), retrain=True, offline=True).evaluation is None


@pytest.fixture
def heads(tmp_path: Path) -> Iterator[Heads]:
    """Return a federation with two heads; the second one is the current one."""
    made = Heads(tmp_path)
    made.run(release_to=("shop",))
    made.run(retrain=True, offline=True, release_to=("shop",))
    yield made
    made.close()


def test_heads_are_listed_with_digest_encoders_and_use(heads: Heads) -> None:
    heads.abort()
    listed = heads.listed()
    assert heads.states() == {3: "aborted", 2: "current", 1: "earlier"}
    weights = (heads.coordinator / "heads/1" / MODEL).read_bytes()
    assert listed[1]["digest"] == blake2b(weights, digest_size=16).hexdigest()
    assert listed[1]["encoders"] == {"bank": "1", "shop": "1"} and listed[1]["problems"] == []
    manifest = RunDir(heads.coordinator / "heads/1").manifest()
    assert listed[1]["uploads"] == {n: e["digest"] for n, e in manifest["encoders"].items()}
    assert listed[3]["digest"] == "" and listed[3]["ended_as"] == "stopped"
    session = heads.match().matches["shop"].session.hex()
    withdraw(heads.coordinator, heads.config().signing_key, "shop", rows(1, session=session), print)
    assert heads.listed()[1]["problems"] == ["shop has withdrawn 1 rows since"]
    text = " ".join(heads.command("list").out.split())
    assert "aborted" in text and listed[2]["digest"][:8] in text and "bank 1, shop 1" in text


def test_a_head_is_shown_with_its_evaluation_and_releases(heads: Heads) -> None:
    found = json.loads(heads.command("show", 2, "--json").out)
    assert found["released_to"] == {"shop": "waiting"}
    assert found["evaluation"]["lines"]
    text = heads.command("show", 2).out
    assert found["digest"] in text and found["uploads"]["bank"] in text and "AUROC" in text
    assert "expected a head among 1, 2, got 7" in heads.refused("show", 7)


def test_a_head_is_used_again_in_both_directions(heads: Heads) -> None:
    runs = {number: each["run"] for number, each in heads.listed().items()}
    said = heads.command("use", 1)
    assert said.code == 0 and "head 1 is the current one" in said.out and "shop" in said.out
    assert heads.states() == {2: "taken back", 1: "current"}
    record = ReleaseStore(heads.coordinator).records()["shop"]
    assert record.run == runs[1] and not record.delivered
    assert "no earlier head" in rejected_with("rollback", heads.file)
    assert heads.command("use", 2).code == 0
    assert heads.states() == {2: "current", 1: "earlier"}
    assert "already" in heads.command("use", 2).out
    assert run_xvfl("rollback", heads.file).code == 0
    assert ReleaseStore(heads.coordinator).records()["shop"].run == runs[1]
    events = [each for each in read_log(heads.coordinator.path) if each["event"] == "head_used"]
    assert [(each["before"], each["head"]) for each in events] == [("2", 1), ("1", 2), ("2", 1)]
    assert all(each["by"] and each["time"] and each["signed_for"] == ["shop"] for each in events)
    assert events[0]["run"] == runs[1] and events[0]["encoders"] == {"bank": "1", "shop": "1"}


def test_a_head_that_may_not_be_used_needs_anyway(heads: Heads) -> None:
    (heads.coordinator / "uploads/bank/revoked.json").write_text("{}")
    assert "certificate of bank is revoked" in heads.refused("use", 1)
    (heads.coordinator / "uploads/bank/withdrawn.json").write_text("{")
    assert "withdrawals of bank cannot be read" in heads.refused("use", 1)
    assert heads.states()[2] == "current"
    assert heads.command("use", 1, "--anyway").code == 0
    assert heads.states()[1] == "current"


def test_nothing_changes_if_a_head_cannot_be_used(heads: Heads) -> None:
    heads.abort()
    assert "continues its training" in heads.refused("use", 3)
    assert "no such head" in heads.refused("use", 9)
    store = ReleaseStore(heads.coordinator, heads.config().signing_key)
    store.release("guest", {"party": "guest", "run": heads.listed()[2]["run"]}, {})
    assert "without guest" in heads.refused("use", 1)
    store.revoke("guest", "no part in it")
    (heads.coordinator / "heads/1" / MODEL).unlink()
    assert "model.safetensors is missing" in heads.refused("use", 1)
    assert "model.safetensors is missing" in heads.refused("use", 1, "--anyway")
    assert heads.states() == {3: "aborted", 2: "current", 1: "earlier"}


def test_a_retired_head_keeps_its_record(heads: Heads) -> None:
    heads.run(retrain=True, offline=True)
    before = heads.listed()[2]
    assert "--yes" in heads.refused("retire", 2)
    assert "the current one" in heads.refused("retire", 3, "--yes")
    assert "expected a head among" in heads.refused("retire", 4, "--yes")
    said = heads.command("retire", 2, "--yes")
    assert said.code == 0 and "head 2 is retired" in said.out
    folder = heads.coordinator / "heads/2"
    assert not list(folder.glob("*.safetensors")) and (folder / "evaluation.json").is_file()
    after = heads.listed()[2]
    assert after["state"] == "retired" and after["retired_by"] and after["retired"]
    for name in ("digest", "encoders", "uploads", "run", "best_score"):
        assert after[name] == before[name]
    (event,) = (e for e in read_log(heads.coordinator.path) if e["event"] == "head_retired")
    assert (event["head"], event["was"], event["digest"]) == (2, "earlier", before["digest"])
    assert "--retrain" in heads.refused("use", 2)
    assert "retired" in heads.refused("retire", 2, "--yes")
    assert run_xvfl("rollback", heads.file).code == 0
    assert heads.states() == {3: "taken back", 2: "retired", 1: "current"}


def test_an_aborted_training_is_retired_and_its_number_not_given_again(heads: Heads) -> None:
    heads.abort()
    with file_lock(heads.coordinator / "heads/3/training.lock"):
        assert heads.states()[3] == "in training"
        assert "in training" in heads.refused("retire", 3, "--yes")
    assert heads.command("retire", 3, "--yes").code == 0
    left = {path.name for path in (heads.coordinator / "heads/3").iterdir()}
    assert left == {"retired.json", "training.lock"} and heads.states()[3] == "retired"
    with pytest.raises(RunError, match="--retrain"):
        heads.run(offline=True)
    assert heads.run(retrain=True, offline=True).evaluation is not None
    assert heads.states() == {4: "current", 3: "retired", 2: "earlier", 1: "earlier"}


def test_no_training_goes_on_after_the_first_one_was_retired(tmp_path: Path) -> None:
    federation = Heads(tmp_path)
    federation.run(release_to=())
    (federation.coordinator / "heads.json").unlink()
    (federation.coordinator / "heads/1/manifest.json").unlink()
    assert federation.states() == {1: "aborted"}
    assert federation.command("retire", 1, "--yes").code == 0
    assert federation.run(offline=True).evaluation is not None
    assert federation.states() == {2: "current", 1: "retired"}
    federation.close()


def test_a_lock_is_seen_and_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert not is_locked(path) and not path.exists()
    with file_lock(path):
        assert is_locked(path)
    assert not is_locked(path)

"""Folders of version 0.3.0, made by its wheel as processes over TLS, in the current version."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.command_line import rejected_with, run_xvfl
from tests.processes import ENVIRONMENT, ROOT, free_port
from tests.security.serve_process import attacked
from xvfl.model.run_dir import RunDir
from xvfl.service.head_store import HeadStore
from xvfl.system.event_log import read_log

pytestmark = pytest.mark.slow
OLD = "d233049"
"""The last commit of version 0.3.0."""
SCRIPT = ROOT / "scripts" / "version"
PARTIES = ("bank", "shop")
N_ROWS, N_NEW, WAIT_S = 240, 40, 240.0
TOLERANCE = 1e-5
"""Largest difference of a probability."""
COORDINATOR = """\
listen = "127.0.0.1:{port}"
parties = ["bank", "shop"]
state_dir = "main"
revocation_list = "certs/ca.crl"
signing_key = "certs/coordinator.release.key"
release_to = ["bank", "shop"]
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/coordinator.crt"
private_key = "certs/coordinator.key"
[labels]
table = "labels.csv"
id_column = "id"
column = "y"
[train]
epochs = 2
batch_size = 64
patience = 0
device = "cpu"
[prediction]
ids = "new.csv"
address = "127.0.0.1:{address}"
deadline = 20.0
"""
PARTY = """\
coordinator = "localhost:{port}"
table = "{name}.csv"
id_column = "id"
state_dir = "{name}"
revocation_list = "certs/ca.crl"
release_key = "certs/coordinator.release.pub"
[tls]
ca_certificate = "certs/ca.crt"
certificate = "certs/{name}.crt"
private_key = "certs/{name}.key"
[prediction]
table = "{name}-new.csv"
address = "127.0.0.1:{address}"
deadline = 20.0
"""
CERTIFICATES = """\
from pathlib import Path
from xvfl.certs import create_authority
authority = create_authority(Path("certs"))
authority.issue("coordinator", hosts=("localhost", "127.0.0.1"))
for name in ("bank", "shop"):
    authority.issue(name)
"""


NEW = (sys.executable,)
"""This version."""


@dataclass
class Federation:
    """Folders and configurations of a federation, and the version that runs it."""

    folder: Path
    python: tuple[str, ...] = NEW

    def run(self, *arguments: str) -> None:
        """Run Python with this version until it ends."""
        done = subprocess.run(
            [*self.python, *arguments], **self._options(), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr

    @contextmanager
    def processes(
        self, *options: str, coordinator: tuple[str, ...] = ()
    ) -> "Iterator[dict[str, subprocess.Popen[str]]]":
        """Start the coordinator and the parties; kill what still runs at the end."""
        running: dict[str, subprocess.Popen[str]] = {}
        with ExitStack() as stack:
            for name in ("coordinator", *PARTIES):
                once = ("--once",) if "--serve" not in options and self.python == NEW else ()
                more = (*options, *(once if name in PARTIES else coordinator))
                running[name] = stack.enter_context(self.process(name, *more))
            yield running

    @contextmanager
    def process(self, name: str, *options: str) -> "Iterator[subprocess.Popen[str]]":
        """Start a side; kill it at the end."""
        command = "party" if name in PARTIES else name
        with (self.folder / f"{name}.err").open("w") as errors:
            running = subprocess.Popen(
                [*self.python, "-m", "xvfl", command, f"{name}.toml", *options],
                **self._options(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        try:
            yield running
        finally:
            running.kill()
            running.wait()

    def train(self, *coordinator: str) -> None:
        """Train until all processes have finished."""
        with self.processes(coordinator=coordinator) as running:
            for name, process in running.items():
                code = process.wait(WAIT_S)
                assert code == 0, (self.folder / f"{name}.err").read_text()

    def answers(self) -> dict[str, pd.DataFrame]:
        """Predict at the endpoints of the coordinator and of a party."""
        began = len(read_log(self.folder / "main"))
        with self.processes("--serve") as running:
            until, waiting = time.monotonic() + WAIT_S, set(PARTIES)
            while waiting:
                for name, process in running.items():
                    assert process.poll() is None, (self.folder / f"{name}.err").read_text()
                assert time.monotonic() < until, read_log(self.folder / "main")
                time.sleep(0.1)
                for event in read_log(self.folder / "main")[began:]:
                    if event["event"] == "party_available":
                        waiting.discard(event["party"])
            return {name: self._predict(name) for name in ("coordinator", "bank")}

    def _predict(self, name: str) -> pd.DataFrame:
        out = self.folder / f"{name}-answers.csv"
        said = run_xvfl("predict-federation", self.folder / f"{name}.toml", "--out", out)
        assert said.code == 0, said.err
        return read_answers(out)

    def _options(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": ENVIRONMENT, "text": True}


@dataclass(frozen=True)
class Old:
    """Folders that version 0.3.0 wrote, and its predictions."""

    folder: Path
    answers: Mapping[str, pd.DataFrame]
    local: pd.DataFrame

    def copy(self, folder: Path) -> Federation:
        """Copy the folders, for the current version."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return Federation(folder)


def write_tables(folder: Path) -> None:
    """Write tables with missing cells and rows, labels, and new rows."""
    rng = np.random.default_rng(0)
    ids, total = [f"c{i:04}" for i in range(N_ROWS + N_NEW)], np.zeros(N_ROWS + N_NEW)
    for name in PARTIES:
        x = rng.normal(size=(len(ids), 3))
        total += x[:, 0]
        frame = pd.DataFrame(x, columns=[f"{name}{i}" for i in range(3)])
        frame["kind"] = rng.choice(["red", "green", "blue"], len(ids))
        frame = frame.mask(rng.random(frame.shape) < 0.1)
        frame.insert(0, "id", ids)
        kept = frame[:N_ROWS].sample(frac=0.95, random_state=1)
        kept.to_csv(folder / f"{name}.csv", index=False)
        frame[N_ROWS:].to_csv(folder / f"{name}-new.csv", index=False)
    labels = pd.DataFrame({"id": ids, "y": np.where(total > 0, "yes", "no")})
    labels[:N_ROWS].to_csv(folder / "labels.csv", index=False)
    labels[["id"]][N_ROWS:].to_csv(folder / "new.csv", index=False)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Old:
    """Match, train, release, predict and export with the wheel of version 0.3.0."""
    known = subprocess.run(
        ["git", "-C", ROOT, "cat-file", "-e", f"{OLD}^{{commit}}"], capture_output=True, check=False
    )
    if known.returncode:
        pytest.skip(f"the commit {OLD} is not in this repository, as in a shallow clone")
    folder = tmp_path_factory.mktemp("old")
    write_tables(folder)
    federation = Federation(folder, (str(SCRIPT), OLD))
    federation.run("-c", CERTIFICATES)
    port = free_port()
    text = COORDINATOR.format(port=port, address=free_port())
    (folder / "coordinator.toml").write_text(text)
    for name in PARTIES:
        text = PARTY.format(port=port, name=name, address=free_port())
        (folder / f"{name}.toml").write_text(text)
    federation.train()
    federation.run("-m", "xvfl", "export", "bank.toml", "--out", "bank.xvfl")
    local = ("--mode", "local", "--party", "bank", "--input", "bank=bank-new.csv")
    federation.run("-m", "xvfl", "predict", "bank", *local, "--output", "local.csv")
    return Old(folder, federation.answers(), read_answers(folder / "local.csv"))


def read_answers(path: Path) -> pd.DataFrame:
    """Read predictions."""
    return pd.read_csv(path).set_index("id").sort_index()


def assert_equal(answers: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Compare predictions, modes and probabilities."""
    for column in ("prediction", "mode", "parties"):
        assert list(answers[column]) == list(expected[column])
    for column in ("proba_no", "proba_yes"):
        np.testing.assert_allclose(answers[column], expected[column], atol=TOLERANCE)


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of a run's files, without logs and what predictions count."""
    return {
        str(path.relative_to(folder)): blake2b(path.read_bytes()).hexdigest()
        for name in ("main", *PARTIES)
        for path in sorted((folder / name).rglob("*"))
        if path.is_file() and path.name != "log.jsonl" and "prediction" not in path.parts
    }


def count_matches(folder: Path) -> int:
    """Count the matches in the coordinator's log."""
    return sum(each["event"] == "matched" for each in read_log(folder / "main"))


def test_a_finished_run_predicts_as_before_and_is_not_changed(old: Old, tmp_path: Path) -> None:
    federation = old.copy(tmp_path)
    before = digests(tmp_path)
    answers = federation.answers()
    assert digests(tmp_path).items() >= before.items()
    assert count_matches(tmp_path) == count_matches(old.folder)
    assert_equal(answers["coordinator"], old.answers["coordinator"])
    assert set(answers["coordinator"]["mode"]) == {"collaborative"}
    own = answers["bank"]
    assert 0 < (own["completed"] > 0).sum() < len(own)
    assert_equal(own, old.answers["bank"])


def test_a_released_head_predicts_locally_and_its_exported_bundle_is_served(
    old: Old, tmp_path: Path
) -> None:
    said = run_xvfl(
        *("predict", old.folder / "bank", "--mode", "local", "--party", "bank"),
        *(f"bank={old.folder / 'bank-new.csv'}", "--out", tmp_path / "local.csv"),
    )
    assert said.code == 0, said.err
    assert_equal(read_answers(tmp_path / "local.csv"), old.local)
    rows = pd.read_csv(old.folder / "bank-new.csv").set_index("id").sort_index()
    with attacked(old.folder / "bank.xvfl") as server:
        for i, (_, row) in enumerate(rows[:5].iterrows()):
            status, answer = server.predict(**row.dropna().to_dict())
            assert status == 200
            (found,) = answer["predictions"]
            expected = old.local.iloc[i]
            assert found["prediction"] == expected["prediction"]
            assert found["probabilities"]["yes"] == pytest.approx(
                expected["proba_yes"], abs=TOLERANCE
            )


def test_sides_of_different_versions_name_the_one_to_update(old: Old, tmp_path: Path) -> None:
    command = "pip install --upgrade 'xvfl[federated]>=0.4'"
    new = old.copy(tmp_path / "new")
    # A coordinator of this version, and a party of 0.3.
    with new.process("coordinator", "--serve"):
        before = Federation(new.folder, (str(SCRIPT), OLD))
        with before.process("bank", "--serve") as party:
            assert party.wait(WAIT_S) == 2
        assert command in (new.folder / "bank.err").read_text()
        rejected = wait_for_event(new.folder / "main", "connection_rejected")
        assert rejected["party"] == "bank" and command in rejected["reason"]
    # A coordinator of 0.3, and a party of this version, which waits for its update.
    before = Federation(old.copy(tmp_path / "old").folder, (str(SCRIPT), OLD))
    after = Federation(before.folder)
    with before.process("coordinator", "--serve"), after.process("bank") as party:
        assert command in wait_for_event(after.folder / "bank", "not_connected")["reason"]
        assert party.poll() is None


def wait_for_event(folder: Path, kind: str) -> dict[str, Any]:
    """Wait for an event in a log; the last one of its kind."""
    until = time.monotonic() + WAIT_S
    while True:
        for event in reversed(read_log(folder)):
            if event["event"] == kind:
                return event
        assert time.monotonic() < until, read_log(folder)
        time.sleep(0.1)


def test_a_start_without_retrain_names_the_commands(old: Old, tmp_path: Path) -> None:
    old.copy(tmp_path)
    said = rejected_with("coordinator", tmp_path / "coordinator.toml", "--quiet")
    assert "--serve" in said and "--retrain" in said


def test_uploads_are_trained_in_the_same_folders_without_matching_again(
    old: Old, tmp_path: Path
) -> None:
    federation = old.copy(tmp_path)
    kept = {
        path: path.read_bytes()
        for name in ("main", *PARTIES)
        for path in (tmp_path / name / "alignment.json", tmp_path / name / "secret.key")
    }
    for name in PARTIES:
        config = tmp_path / f"{name}.toml"
        config.write_text(config.read_text() + "[encoder]\nepochs = 2\n")
    for name in ("main", *PARTIES):
        (tmp_path / name / "log.jsonl").unlink()
    federation.train("--retrain")
    assert {path: path.read_bytes() for path in kept} == kept
    for name in ("main", *PARTIES):
        events = {each["event"] for each in read_log(tmp_path / name)}
        assert not {each for each in events if each.startswith("match")}, events
    assert HeadStore(RunDir(tmp_path / "main")).current.path.name == "1"
    for name in PARTIES:
        installed = RunDir(tmp_path / name).read_json("release.json")["number"]
        assert installed > RunDir(old.folder / name).read_json("release.json")["number"]
    assert "no earlier head" in rejected_with("rollback", tmp_path / "coordinator.toml")

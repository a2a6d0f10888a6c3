"""A federation by uploads as real processes over TLS: killed, stopped, retrained, rolled back."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pytest
import torch
from rich.console import Console

from tests.command_line import run_xvfl
from tests.processes import SOURCES, free_port, run_process
from xvfl.cli import demo_federated
from xvfl.cli.demo_federated import COORDINATOR, PARTIES, Processes, write_files
from xvfl.config import EncoderConfig, TrainConfig
from xvfl.model.run_dir import MODEL, RunDir
from xvfl.service.head_store import HeadStore
from xvfl.service.uploads.upload_store import stored_uploads
from xvfl.system.event_log import read_log

pytestmark = pytest.mark.slow
TRAIN = TrainConfig(epochs=4, batch_size=64, patience=0, device="cpu")
ENCODER = EncoderConfig(epochs=3)
N_ROWS, N_LATE = 600, 40
DYING = """
import os, runpy, signal, sys, time
from xvfl.system.event_log import EventLog
from xvfl.service.uploads import upload_party

process, kind, number = sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1))
write, seen = EventLog.write, []
chunk = upload_party.UploadPartyService.chunk

def see(event):
    seen.append(event)
    if sys.argv[2] == process + ".toml" and seen.count(kind) == number:
        os.kill(os.getpid(), signal.SIGKILL)

def write_and_die(self, event):
    write(self, event)
    see(event["event"])

def send_and_die(self, message):
    reply = chunk(self, message)
    with open(sys.argv[2] + ".chunks", "a") as file:
        file.write(f"{message.number} ")
    time.sleep(0.3)
    see("chunk")
    return reply

EventLog.write = write_and_die
if kind == "chunk":
    upload_party.MAX_CHUNK_ROWS = 64
    upload_party.UploadPartyService.chunk = send_and_die
runpy.run_module("xvfl", run_name="__main__", alter_sys=True)
"""
"""`xvfl` with a process that kills itself (SIGKILL) after an event of its log, or before it sends a
chunk of its upload; chunks are small then, and their numbers are written to a file."""
FORGING = """
import runpy, sys
from xvfl.service.uploads import upload_party

compute = upload_party.compute_views
upload_party.compute_views = lambda worker, *rest: compute(worker, *rest) * (
    1000 if worker.name == "right" else 1
)
runpy.run_module("xvfl", run_name="__main__", alter_sys=True)
"""
"""`xvfl` whose party `right` uploads its embeddings times 1000."""


@pytest.fixture(scope="module", autouse=True)
def _sources() -> Iterator[None]:
    """Let processes import the sources."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", SOURCES)
        yield


def make_processes(folder: Path) -> Processes:
    return Processes(folder, Console(quiet=True), TRAIN, ENCODER)


def write_fewer_rows(folder: Path) -> None:
    """Write the files of the federated demo, with a part of its rows."""
    write_files(folder)
    kept = pd.read_csv(folder / "labels.csv", index_col="id").index[:N_ROWS]
    for name in ("labels", *PARTIES):
        table = pd.read_csv(folder / f"{name}.csv", index_col="id")
        table[table.index.isin(kept)].to_csv(folder / f"{name}.csv")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Return the processes of a federation, which are not started yet."""
    write_fewer_rows(tmp_path)
    with make_processes(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a federation; its party `right` has no late rows yet. Return its folder."""
    folder = tmp_path_factory.mktemp("finished")
    write_fewer_rows(folder)
    table = pd.read_csv(folder / "right.csv", index_col="id")
    table.to_csv(folder / "right-late.csv")
    table[:-N_LATE].to_csv(folder / "right.csv")
    with make_processes(folder) as made:
        made.start()
        made.event("finished")
    return folder


@pytest.fixture
def stopped(finished: Path, tmp_path: Path) -> Iterator[Processes]:
    """Return the processes of a copy of the trained federation, which do not run."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    with make_processes(tmp_path) as made:
        yield made


def die_at(processes: Processes, name: str, kind: str, number: int = 1) -> None:
    """Let the next process of this name kill itself at the given occurrence of an event."""
    processes.program = ("-c", DYING, name, kind, str(number))


def wait_for_death(processes: Processes, name: str) -> None:
    """Wait until a process has killed itself; later processes do not."""
    assert processes.running[name].wait() == -signal.SIGKILL
    processes.program = Processes.program


def test_a_party_killed_before_its_upload_continues_and_is_not_needed_after_it(
    processes: Processes,
) -> None:
    die_at(processes, "right", "encoder_training")
    processes.start()
    wait_for_death(processes, "right")
    processes.launch("right")
    processes.event("run_started")
    for name in PARTIES:
        processes.kill(name)
    step = processes.event("finished")["step"]
    assert step > 0
    for name in PARTIES:
        processes.launch(name)
    processes.wait()
    received = [
        each["party"]
        for each in read_log(processes.out / "coordinator")
        if each["event"] == "upload_received"
    ]
    assert sorted(received) == sorted(PARTIES)


@pytest.mark.parametrize("killed", ["right", "coordinator"])
def test_an_upload_in_which_a_side_is_killed_continues(processes: Processes, killed: str) -> None:
    die_at(processes, "right", "chunk", 4 if killed == "right" else -1)
    processes.start()
    asked = processes.out / "right.toml.chunks"
    if killed == "right":
        assert processes.running["right"].wait() == -signal.SIGKILL
        expected = "0 1 2 3 3 4 "
        die_at(processes, "nobody", "chunk")
        processes.launch("right")
    else:
        while not (asked.is_file() and len(asked.read_text().split()) > 2):
            assert processes.running["right"].poll() is None
            time.sleep(0.01)
        processes.kill("coordinator")
        expected = "0 1 2 "
        address = processes.event("listening")["address"]
        config = processes.out / "coordinator.toml"
        config.write_text(config.read_text().replace("127.0.0.1:0", address))
        processes.launch("coordinator")
    manifest = processes.event("upload_received", party="right")
    store = stored_uploads(RunDir(processes.out / "coordinator"), "right")[0]
    numbers, count = [*map(int, asked.read_text().split())], len(store.manifest.chunks)
    assert asked.read_text().startswith(expected) and count > 6
    # Each chunk once, but that which had not arrived.
    assert len(numbers) <= count + 1 and set(numbers) == set(range(count))
    assert manifest["digest"] == store.manifest.digest and not store.missing
    assert processes.event("run_started")


def test_an_upload_of_large_values_is_left_out(processes: Processes) -> None:
    processes.program = ("-c", FORGING)
    coordinator = COORDINATOR.replace("\n[tls]", '\non_anomaly = "leave_out"\n[tls]', 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_federated, "COORDINATOR", coordinator)
        processes.start()
    finished = processes.event("finished")
    assert finished["left_out"] == ["right"]
    assert "expected numbers from -1 to 1" in finished["suspicious"]["right"]
    assert "upload_rejected" in {e["event"] for e in read_log(processes.out / "coordinator")}
    assert HeadStore(RunDir(processes.out / "coordinator")).current.manifest()["parties"] == [
        "left"
    ]
    processes.running["coordinator"].wait()
    errors = (processes.out / "coordinator.err").read_text()
    assert "suspicious upload of right (leave_out): " in errors


def test_a_killed_coordinator_ends_with_the_same_weights(processes: Processes) -> None:
    die_at(processes, "coordinator", "run_started")
    processes.start()
    wait_for_death(processes, "coordinator")
    for name in PARTIES:
        processes.kill(name)
    state = processes.out / "coordinator"
    shutil.copytree(state, processes.out / "copy")
    (state / "log.jsonl").unlink()
    die_at(processes, "coordinator", "epoch", TRAIN.epochs // 2)
    processes.launch("coordinator")
    wait_for_death(processes, "coordinator")
    weights = []
    for source in (state, processes.out / "copy"):
        if source != state:
            shutil.rmtree(state)
            shutil.copytree(source, state)
        (state / "log.jsonl").unlink()
        processes.launch("coordinator")
        processes.event("finished")
        processes.kill("coordinator")
        weights.append(HeadStore(RunDir(state)).current.load_tensors(MODEL)[0])
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def make_site(finished: Path, folder: Path, name: str, state: Sequence[str]) -> None:
    """Copy the files of a side alone, with a part of its state folder."""
    table = "labels" if name == "coordinator" else name
    certificates = ("ca.crt", "ca.crl", f"{name}.crt", f"{name}.key")
    files = [f"{name}.toml", f"{table}.csv", *(f"certs/{each}" for each in certificates)]
    for each in (*files, *(f"{name}/{each}" for each in state)):
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(finished / each, folder / each)


def test_uploads_by_file_give_the_weights_of_those_over_grpc(
    finished: Path, tmp_path: Path
) -> None:
    sites = {name: tmp_path / f"site-{name}" for name in ("coordinator", *PARTIES)}
    # The ids are matched; the parties have no encoder yet, and nobody listens.
    run = ("secret.key", "alignment.json", "split.json", "heads/1/run_name.json")
    make_site(finished, sites["coordinator"], "coordinator", run)
    config = sites["coordinator"] / "coordinator.toml"
    config.write_text(config.read_text().replace("[tls]", "[timeouts]\noutcome = 0.1\n[tls]", 1))
    for name in PARTIES:
        make_site(finished, sites[name], name, ("secret.key", "alignment.json"))
        listed, upload = f"{name}.heldout", f"{name}.upload"
        coordinator = ("upload", "held-out", config.name, "--party", name, "--out", listed)
        run_process(config.parent, *coordinator)
        shutil.move(config.parent / listed, sites[name])
        run_process(
            sites[name], "upload", "export", f"{name}.toml", "--held-out", listed, "--out", upload
        )
        shutil.move(sites[name] / upload, config.parent)
        run_process(config.parent, "upload", "import", config.name, upload)
    run_process(config.parent, "coordinator", config.name, "--quiet")
    states = RunDir(finished / "coordinator"), RunDir(config.parent / "coordinator")
    for name in PARTIES:
        stored = [(each.path / f"uploads/{name}/1/views.f16").read_bytes() for each in states]
        assert stored[0] == stored[1]
    weights = [HeadStore(state).current.load_tensors(MODEL)[0] for state in states]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_head_is_trained_again_without_parties_and_taken_back(stopped: Processes) -> None:
    config = stopped.out / "coordinator.toml"
    config.write_text(config.read_text().replace("[tls]", "[timeouts]\noutcome = 0.1\n[tls]", 1))
    said = run_xvfl("coordinator", config, "--quiet", "--retrain")
    assert said.code == 0, said.err
    heads = HeadStore(RunDir(stopped.out / "coordinator"))
    assert heads.current.path.name == "2"
    said = run_xvfl("rollback", config)
    assert said.code == 0 and "head 1 is the current one" in said.out
    assert heads.current.path.name == "1"


def test_a_killed_retrain_is_listed_and_retired(stopped: Processes) -> None:
    config, folder = stopped.out / "coordinator.toml", stopped.out / "coordinator"

    def states() -> dict[int, tuple[str, str]]:
        listed = json.loads(run_xvfl("heads", "list", config, "--json").out)
        return {each["number"]: (each["state"], each["ended_as"]) for each in listed}

    config.write_text(config.read_text().replace("[tls]", "[timeouts]\noutcome = 0.1\n[tls]", 1))
    retrain = ("coordinator", config.name, "--quiet", "--retrain")
    program = (sys.executable, "-c", DYING, "coordinator", "epoch", "1")
    done = subprocess.run([*program, *retrain], cwd=stopped.out, check=False)
    assert done.returncode == -signal.SIGKILL
    assert states() == {2: ("aborted", "its process was killed"), 1: ("current", "")}
    said = run_xvfl("heads", "retire", config, 2, "--yes")
    assert said.code == 0, said.err
    assert not list((folder / "heads/2").glob("*.safetensors"))
    said = run_xvfl("coordinator", config, "--quiet", "--retrain")
    assert said.code == 0, said.err
    assert states() == {3: ("current", ""), 2: ("retired", ""), 1: ("earlier", "")}


def test_new_and_changed_rows_are_uploaded_as_a_part(stopped: Processes) -> None:
    out = stopped.out
    table = pd.read_csv(out / "right-late.csv", index_col="id")
    changed = table.index[:3]
    table.loc[changed] = 16 - table.loc[changed].fillna(0)
    table.to_csv(out / "right.csv")
    # Other ids are other rows: match again.
    (out / "right/alignment.json").unlink()
    alignment = json.loads((out / "coordinator/alignment.json").read_text())
    del alignment["parties"]["right"]
    (out / "coordinator/alignment.json").write_text(json.dumps(alignment))
    said = run_xvfl("upload", "new-rows", out / "right.toml")
    assert said.code == 0 and "version 1.1 is allowed" in said.out, said.err
    config, port = out / "coordinator.toml", free_port()
    config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    (out / "coordinator/log.jsonl").unlink()
    for name in PARTIES:
        path = out / f"{name}.toml"
        path.write_text(re.sub(r"localhost:\d+", f"localhost:{port}", path.read_text()))
        stopped.launch(name)
    said = run_xvfl("coordinator", config, "--quiet", "--retrain")
    assert said.code == 0, said.err
    (received,) = (e for e in read_log(out / "coordinator") if e["event"] == "upload_received")
    assert (received["party"], received["version"], received["part"]) == ("right", 1, 1)
    assert received["replaced"] == 3 and 0 < received["appended"] <= N_LATE
    assert (
        HeadStore(RunDir(out / "coordinator")).current.manifest()["encoders"]["right"]["digest"]
        == received["digest"]
    )

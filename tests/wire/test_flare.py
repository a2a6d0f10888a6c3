"""NVIDIA FLARE carries a run: its weights are the fused ones."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.federation.split_helpers import make_endpoints, make_federation, make_small_method
from tests.problems import SEED
from tests.small_tables import SOURCE, make_tables
from tests.wire.flare_job import METHOD, RECONSTRUCTION, SITES, STEPS, TRAIN, copy_weights
from tests.wire.transport_helpers import wait_until
from xvfl.errors import ConfigError, PartyError, WireError
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.matching import load_party_alignment
from xvfl.model.run_dir import RunDir
from xvfl.service.head_store import HeadStore
from xvfl.training.loop import Trainer
from xvfl.wire import codec
from xvfl.wire.messages import Done, End, Hello


def has_flare() -> bool:
    """Look for FLARE without importing it: that takes seconds in every test process."""
    spec = find_spec("nvflare")
    folders = spec.submodule_search_locations or [] if spec else []
    return any((Path(each) / "collab").is_dir() for each in folders)


pytestmark = pytest.mark.skipif(not has_flare(), reason="needs the extra xvfl[flare]")


def fused_weights() -> dict[str, dict[str, torch.Tensor]]:
    made = make_federation(len(SITES), torch.float32, dropout=0.3)
    method = make_small_method(made, METHOD)
    each = zip(made.names, made.parties, made.tables, strict=True)
    fused = FusedFederation([PartyWorker(*of_party, [SEED], RECONSTRUCTION) for of_party in each])
    trainer = Trainer(fused, method, made.rows, TRAIN)
    steps = sum(record.kind == "step" for record in trainer.run(lambda: 0.0))
    assert steps == STEPS
    nets = dict(zip(SITES, made.parties, strict=True)) | {"heads": method.heads}
    return {name: copy_weights(net) for name, net in nets.items()}


def run_group(command: list[str], environment: dict[str, str], folder: Path) -> tuple[int, str]:
    """Run a command; at the end, kill every process that it has started."""
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(1500)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simulator", "provisioned"])
def test_training_over_flare_ends_in_the_fused_weights(kind: str, tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{SOURCE.parent}",
        "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "tests.wire.flare_job", kind, str(tmp_path)]
    code, output = run_group(command, environment, tmp_path)
    assert code == 0, output[-4000:]
    untrained = make_federation(len(SITES), torch.float32, dropout=0.3).parties[0]
    moved, worst = 0.0, 0.0
    for name, expected in fused_weights().items():
        found = load_file(tmp_path / f"{name}.safetensors")
        assert found.keys() == expected.keys()
        worst = max(worst, *(float((found[key] - expected[key]).abs().max()) for key in found))
        if name == SITES[0]:
            start = copy_weights(untrained)
            moved = max(float((expected[key] - start[key]).abs().max()) for key in start)
    print(f"{kind}: {STEPS} steps, weights differ from the fused run's by {worst:.1e}")
    assert worst <= 1e-5 and moved > 0.1


SERVER = """
parties = ["bank", "shop"]
labels = { table = "labels.csv", id_column = "customer", column = "churned" }
net = { embedding_dim = 8, hidden_dim = 128 }
train = { epochs = 3, batch_size = 32, device = "cpu" }
"""
PARTY = """
table = "{name}.csv"
id_column = "customer"
state_dir = "{name}"
"""


@pytest.mark.slow
def test_the_example_trains_from_each_sides_own_configuration(tmp_path: Path) -> None:
    bank, shop, y = make_tables()
    bank.reset_index().to_csv(tmp_path / "bank.csv", index=False)
    shop.reset_index().to_csv(tmp_path / "shop.csv", index=False)
    y.reset_index().to_csv(tmp_path / "labels.csv", index=False)
    (tmp_path / "server.toml").write_text(SERVER)
    for name in ("bank", "shop"):
        (tmp_path / f"{name}.toml").write_text(PARTY.format(name=name))
    command = [sys.executable, str(SOURCE.parent / "examples" / "flare_job.py")]
    command += ["--server", str(tmp_path / "server.toml")]
    for name in ("bank", "shop"):
        command += ["--site", f"{name}={tmp_path / name}.toml"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    code, output = run_group(command, environment, tmp_path)
    assert code == 0, output[-4000:]
    head = HeadStore(RunDir(tmp_path / "state")).current
    lines = head.read_json("evaluation.json")["lines"]
    assert {line["mode"] for line in lines} >= {"local", "collaborative"}
    assert len(head.records()) == 3
    for name in ("bank", "shop"):
        assert (tmp_path / name / "encoders/1/weights.safetensors").is_file()
        kept = load_party_alignment(tmp_path / name / "alignment.json")
        assert len(kept.match.rows) == len(bank if name == "bank" else shop)


class Site:
    """Stands for FLARE's proxy of a site whose line fails a few times."""

    name = "p0"

    def __init__(self, failures: list[Exception]) -> None:
        self.failures, self.frames = failures, list[bytes]()
        self.may_fail = threading.Event()
        self.may_fail.set()

    def __call__(self, timeout: float) -> "Site":
        return self

    def greet(self) -> bytes:
        return codec.encode(HELLO)

    def answer(self, frame: bytes) -> bytes:
        self.frames.append(frame)
        if self.failures:
            failure = self.failures.pop(0)
            self.may_fail.wait(120)
            raise failure
        return codec.encode(Done(codec.decode(frame).request_id, 3))


HELLO = Hello(0, "instance_id", False, 4, "columns", "session")


def test_a_call_that_failed_on_the_way_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from nvflare.collab import CollabCallError

    from xvfl.wire.flare import FlareTransport

    monkeypatch.setattr("xvfl.wire.flare.RETRY_S", 0.01)
    lost = [CollabCallError("p0", "answer", TimeoutError("late")) for _ in range(2)]
    site = Site([*lost])
    line = FlareTransport(site)
    assert line.hello() == HELLO
    assert line.request(End(7, "finished")).result(120) == Done(7, 3)
    assert len(site.frames) == 3 and len(set(site.frames)) == 1
    line.close()


def test_what_fails_at_the_site_is_the_partys_fault() -> None:
    from nvflare.collab import CollabCallError

    from xvfl.wire.flare import FlareTransport

    raised = CollabCallError("p0", "answer", "no such file", "OSError", "Traceback …")
    line = FlareTransport(Site([raised]))
    with pytest.raises(PartyError, match="no such file"):
        line.request(End(7, "finished")).result(120)
    line.close()


def test_asking_the_next_gives_up_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    from nvflare.collab import CollabCallError

    from xvfl.wire.flare import FlareTransport

    monkeypatch.setattr("xvfl.wire.flare.RETRY_S", 0.01)
    site = Site([CollabCallError("p0", "answer", TimeoutError("late"))])
    site.may_fail.clear()
    line = FlareTransport(site)
    first = line.request(End(7, "finished"))
    wait_until(lambda: site.frames)
    assert line.request(End(8, "finished")).result(120) == Done(8, 3)
    site.may_fail.set()
    line._pool.shutdown(wait=True)
    assert not first.done() and [codec.decode(each).request_id for each in site.frames] == [7, 8]


def test_a_site_answers_the_server_alone() -> None:
    from nvflare.collab.api.context import Context, set_call_context

    from xvfl.wire.flare import FlareParty

    made = make_endpoints(make_federation(len(SITES)))[0]
    party = FlareParty(build="tests.wire.flare_job:endpoint")
    party._endpoint = made
    try:
        set_call_context(Context(None, "p1", "p0", None))
        for call in (party.greet, lambda: party.answer(codec.encode(End(1, "finished")))):
            with pytest.raises(
                WireError, match="expected a call from the server, got one from 'p1'"
            ):
                call()
        assert made.end_reason is None
        set_call_context(Context(None, "server", "p0", None))
        assert codec.decode(party.greet()) == made.hello
        assert codec.decode(party.answer(codec.encode(End(1, "finished")))) == Done(1, 0)
    finally:
        set_call_context(None)


def test_a_function_that_is_not_there_is_named() -> None:
    from xvfl.wire.flare import import_function

    with pytest.raises(ConfigError, match="'nowhere:at_all': expected module:function"):
        import_function("nowhere:at_all")

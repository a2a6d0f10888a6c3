"""Which steps are captured, and that nothing outlives its run; replays themselves need a GPU.

`python -m xvfl_lab.bench agreement` compares captured steps with plain ones on a GPU.
"""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.small_tables import CONFIG, train, write_run_inputs
from xvfl.config import EncoderConfig, NetConfig
from xvfl.federation.upload.encoder_net import build_encoder
from xvfl.federation.upload.encoder_training import EncoderTraining
from xvfl.model import fitting as training
from xvfl.model.custom_nets import CustomNets
from xvfl.model.fitting import can_capture
from xvfl.training import loop
from xvfl.training.cuda_graph import WARM_UP, CudaGraphStep, StepFunction
from xvfl.training.loop import Trainer
from xvfl_lab.bench.agreement import BATCH, rows_for
from xvfl_lab.bench.disk import on_disk
from xvfl_lab.bench.gpu import configs, random_table
from xvfl_lab.bench.shapes import config
from xvfl_lab.experiments.stacked_runs import StackedRuns
from xvfl_lab.methods import METHODS

CPU = torch.device("cpu")


class Replayed:
    """Replacement of a captured step without a GPU: computes each step eagerly, and counts."""

    made = 0

    def __init__(self, index: Tensor, rate: float) -> None:
        pass

    def __call__(
        self, learn: StepFunction, index: Tensor, step: int, rate: float
    ) -> dict[str, Tensor]:
        Replayed.made += 1
        return learn(index, step, rate)


class Counted(CudaGraphStep):
    """A captured step that counts."""

    def __call__(
        self, learn: StepFunction, index: Tensor, step: int, rate: float
    ) -> dict[str, Tensor]:
        Replayed.made += 1
        return super().__call__(learn, index, step, rate)


@pytest.fixture(autouse=True)
def replayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Replayed.made = 0
    monkeypatch.setattr(loop, "CudaGraphStep", Replayed)
    with torch.random.fork_rng(devices=[]):
        yield


def stack() -> StackedRuns:
    run = configs("xvfl+", NetConfig(8, 8), config(BATCH, epochs=1))[:1]
    return StackedRuns(random_table(rows_for(BATCH)), run, CPU)


@pytest.mark.parametrize(
    ("optimizer", "captured"), [("adamw", 8), ("adam", 8), ("sgd", 0), ("page", 0)]
)
def test_steps_of_adam_are_captured(optimizer: str, captured: int) -> None:
    made = stack()
    train = replace(made.options.train, optimizer=optimizer)  # type: ignore[arg-type]
    trainer = Trainer(made.federation, made.method, made.rows("train"), train, cuda_graph=True)
    list(trainer.run(lambda: 0.0))
    assert Replayed.made == captured


def test_a_run_goes_with_its_last_reference() -> None:
    """A GPU's memory must not wait for the collector, nor one graph go while another is made."""
    made = stack()
    train = made.options.train
    trainer = Trainer(made.federation, made.method, made.rows("train"), train, cuda_graph=True)
    next(trainer.run(lambda: 0.0))
    gone = weakref.ref(trainer)
    gc.collect()
    gc.disable()
    try:
        del trainer
        assert gone() is None
    finally:
        gc.enable()


def test_rows_in_memory_and_known_nets_can_be_captured() -> None:
    made = stack()
    rows = made.rows("train")
    assert can_capture(made.federation, rows, None)
    assert can_capture(made.federation, rows, CustomNets(head=nn.Linear(8, 2)))
    assert not can_capture(made.federation, rows, CustomNets(head=nn.Dropout(0.1)))


def test_a_hooked_net_cannot_be_captured() -> None:
    made = stack()
    rows = made.rows("train")
    head = nn.Linear(8, 2)
    head.register_full_backward_hook(lambda *_: None)
    assert not can_capture(made.federation, rows, CustomNets(head=head))
    made.federation.workers[1].net.bottom.register_forward_hook(lambda *_: None)
    assert not can_capture(made.federation, rows, None)


def test_rows_on_disk_cannot_be_captured() -> None:
    made = stack()
    with on_disk(made, CPU) as rows:
        assert not can_capture(made.federation, rows, None)
        assert not can_capture(made.federation, made.rows("train"), None)


def test_on_a_cpu_nothing_is_captured(tmp_path: Path) -> None:
    train(write_run_inputs(tmp_path, CONFIG), tmp_path / "run")
    assert Replayed.made == 0


class CopiedLists(TorchFunctionMode):
    """Records lists that become tensors, also as indices: on a GPU they cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (Tensor.__getitem__, Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            self.found += [each for each in index if isinstance(each, list)]
        elif function in (torch.tensor, torch.as_tensor):
            self.found.append(args[0])
        return function(*args, **(kwargs or {}))


def copied_lists(trainer: Trainer) -> list[Any]:
    """Run a training; find the lists that its steps copy after those before a capture."""
    steps = trainer.run(lambda: 0.0)
    for _ in range(WARM_UP):
        next(steps)
    with CopiedLists() as copied:
        for _ in steps:
            pass
    return copied.found


@pytest.mark.parametrize("method", sorted(METHODS))
def test_steps_of_methods_copy_no_lists(method: str) -> None:
    run = configs(method, NetConfig(8, 8), config(BATCH, epochs=1))[:1]
    made = StackedRuns(random_table(rows_for(BATCH)), run, CPU)
    rows, options = made.rows("train"), made.options.train
    assert copied_lists(Trainer(made.federation, made.method, rows, options)) == []


def test_steps_of_encoders_copy_no_lists() -> None:
    made = stack()
    (name, table), *_ = made.tables.items()
    config = EncoderConfig(embedding_dim=8, hidden_dim=8, batch_size=BATCH, epochs=1)
    net = build_encoder(name, table.layout, config, [0])
    training = EncoderTraining(name, net, table, torch.arange(len(table)), config, [0])
    assert copied_lists(training.trainer) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_training_ends_as_a_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CudaGraphStep", Counted)
    how = write_run_inputs(tmp_path, CONFIG.replace('device = "cpu"', 'device = "cuda"'))
    captured = train(how, tmp_path / "captured")
    assert Replayed.made == captured.records[-1]["step"]
    monkeypatch.setattr(training, "can_capture", lambda *_: False)
    plain = train(how, tmp_path / "plain")
    assert Replayed.made == captured.records[-1]["step"]
    for one, other in zip(captured.records, plain.records, strict=True):
        assert one["score"] == pytest.approx(other["score"], rel=1e-3)

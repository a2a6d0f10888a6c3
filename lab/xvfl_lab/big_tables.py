"""Benchmark of tables larger than memory: memory by rows, and rates against in-memory rows.

Every number comes from a process of its own, `python -m xvfl_lab.big_tables WHAT FOLDER NUMBER`, so
that measurements do not affect each other. Steps that are compared take turns.
"""

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset
from xvfl.dataset.on_disk.parquet_tables import open_tables
from xvfl.dataset.on_disk.prepare_on_disk import prepare_on_disk
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.model.fitting import ProgressUpdate, resolve_for_dataset
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.model.stream_predict import predict_stream
from xvfl.model.workflow import train_run
from xvfl.options import Options
from xvfl.primitives.layout import any_image
from xvfl.primitives.rows import RowSource, Table
from xvfl.training.loop import Trainer
from xvfl.training.predict import logits
from xvfl.training.threads import limit_threads
from xvfl_lab.bench.timing import take_turns

COLUMNS, GROUP = 40, 100_000
"""Columns of each party, of which five are categories and one has a thousand values."""
PARTIES = {"bank": ("bank.parquet", "id"), "shop": ("shop.parquet", "id")}
CONFIG = """
out_of_core = true
labels = {party = "bank", column = "label"}
parties.bank = {table = "bank.parquet", id_column = "id"}
parties.shop = {table = "shop.parquet", id_column = "id"}
train = {epochs = 100, patience = 0, batch_size = 1024, device = "cpu"}
"""
CPU = torch.device("cpu")


def measure(rows: int, folder: Path, steps: int = 500) -> dict[str, float]:
    """Write tables with this many rows and train some steps: memory in MB, time in s."""
    in_process("write", folder, rows)
    return in_process("train", folder, steps)


def rates(folder: Path, steps: int = 100) -> dict[str, float]:
    """Compare out-of-core steps with in-memory steps, and predicting a file with its model."""
    return in_process("step", folder, steps) | in_process("predict", folder, 0)


def in_process(what: str, folder: Path, number: int) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "xvfl_lab.big_tables", what, str(folder), str(number)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def write(folder: Path, rows: int) -> dict[str, float]:
    """Write two parties' files with 5 % missing numbers; the shop's rows are shuffled."""
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    for party in PARTIES:
        chunks = _chunks(party, rows)
        first = next(chunks)
        with pyarrow.parquet.ParquetWriter(folder / f"{party}.parquet", first.schema) as writer:
            writer.write_table(first)
            for chunk in chunks:
                writer.write_table(chunk)
    return {}


def _chunks(party: str, rows: int) -> Iterator[Any]:
    import pyarrow as pa

    words = np.array([f"word{i}" for i in range(1000)])
    weights = np.random.default_rng(0).normal(size=COLUMNS - 6) / 6
    for start in range(0, rows, GROUP):
        count = min(GROUP, rows - start)
        hidden = np.random.default_rng(start).normal(size=count)
        rng = np.random.default_rng([start, len(party), ord(party[0])])
        order = rng.permutation(count) if party == "shop" else np.arange(count)
        columns: dict[str, Any] = {"id": np.arange(start, start + count)[order]}
        for i, weight in enumerate(weights):
            cells = hidden[order] * weight + rng.normal(size=count)
            columns[f"n{i}"] = pa.array(cells, mask=rng.random(count) < 0.05)
        for i in range(5):
            columns[f"c{i}"] = words[rng.integers(0, 4, count)]
        columns["h"] = words[rng.integers(0, 1000, count)]
        if party == "bank":
            columns["label"] = (hidden + rng.normal(size=count) > 0).astype(np.int64)
        yield pa.table(columns)


def train(folder: Path, steps: int) -> dict[str, float]:
    """Train some steps as `xvfl train` does, and measure the memory after each."""
    config, run = folder / "run.toml", folder / "run"
    config.write_text(CONFIG)
    memory: list[float] = []
    started, first = time.perf_counter(), 0.0

    def show(update: ProgressUpdate) -> None:
        nonlocal first
        first = first or time.perf_counter()
        memory.append(_resident())
        if len(memory) == steps:
            signal.raise_signal(signal.SIGINT)

    train_run(config, CONFIG, RunDir(run), False, show)
    shutil.rmtree(run)
    peak = _peak()
    return {"prepared_s": first - started, "steps_mb": max(memory), "peak_mb": peak}


def step(folder: Path, steps: int) -> dict[str, float]:
    """Time steps on disk rows and on the same rows in memory, in turns."""
    prepared = _prepared(folder)
    stored: dict[str, Table] = dict(prepared.tables)
    every = torch.arange(prepared.sizes.train)
    held: dict[str, Table] = {name: table.take(every) for name, table in stored.items()}
    rows = prepared.training_rows(CPU)
    with limit_threads(any_image(prepared.layouts), CPU):
        runs = {
            "streamed": _steps(prepared, stored, rows),
            "memory": _steps(prepared, held, rows.take(every)),
        }
        times = take_turns(runs, rounds=steps - 5, steps=1, warm=5).rounds
    prepared.close()
    streamed, memory = (fmean(times[name]) for name in ("streamed", "memory"))
    return {"streamed_step_ms": streamed, "of_memory_rate": memory / streamed}


def _prepared(folder: Path) -> OnDiskDataset:
    tables = open_tables(PARTIES, "bank", "label", folder)
    return prepare_on_disk(tables, PreparationPlan({}, Splits(0.2, 0.15, 0)), folder / "cache")


def _model(prepared: OnDiskDataset) -> Model:
    about = (prepared.encoders, prepared.full_threshold, prepared.task, prepared.prior())
    options = _options(prepared)
    return Model(*about, options.net, options.loss, 0)


def _options(prepared: OnDiskDataset) -> Options:
    train = TrainConfig(batch_size=1024, patience=0)
    return resolve_for_dataset(prepared, NetConfig(members=1), LossConfig(), train)


def _steps(prepared: OnDiskDataset, tables: dict[str, Table], rows: RowSource) -> Iterator[object]:
    model = _model(prepared)
    weight = model.loss.reconstruction_weight
    sides = [
        PartyWorker(name, net, tables[name], [0], weight) for name, net in model.parties.items()
    ]
    train = _options(prepared).train
    return Trainer(FusedFederation(sides), model.method, rows, train).run(lambda: 0.0)


def predict(folder: Path, _: int) -> dict[str, float]:
    """Time predicting the bank's file, and its model on encoded rows."""
    prepared = _prepared(folder)
    model = _model(prepared)
    tables = open_tables(PARTIES, "bank", "label", folder).parties
    count = 32_768
    index = torch.arange(count)
    rows = prepared.training_rows(CPU).take(index).select_parties([0])
    side = PartyWorker("bank", model.parties["bank"], prepared.tables["bank"].take(index), [0])
    with limit_threads(any_image(model.layouts), CPU):
        started = time.perf_counter()
        logits(model.method.select_parties([0]), FusedFederation([side]), rows, "local", 0)
        bare = time.perf_counter() - started
    prepared.close()
    bank, output = {"bank": tables["bank"]}, folder / "answers.parquet"
    started = time.perf_counter()
    predict_stream(model, bank, "local", "bank", output, lambda done, total: None)
    rate = len(tables["bank"]) / (time.perf_counter() - started)
    measured = {"predicted_rows_s": rate, "of_model_rate": rate * bare / count}
    return {**measured, "predict_peak_mb": _peak()}


def _peak() -> float:
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes * 1024 / 1e6


def _resident() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


WHAT: dict[str, Callable[[Path, int], dict[str, float]]] = {
    "write": write,
    "train": train,
    "step": step,
    "predict": predict,
}

if __name__ == "__main__":
    print(json.dumps(WHAT[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))

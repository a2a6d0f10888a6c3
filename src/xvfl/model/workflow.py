"""What the commands do: train from a configuration, evaluate and predict from a run folder."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, closing, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from xvfl.config import Config, parse_config
from xvfl.data.encoder import read_images
from xvfl.data.frames import read_labels, read_table
from xvfl.data.labels import labels_at_party
from xvfl.data.parquet import is_parquet, open_parquet
from xvfl.data.sources import Source, take
from xvfl.data.table_writer import check_output, write_table
from xvfl.dataset.on_disk import (
    OnDiskDataset,
    ParquetTables,
    cached,
    clear,
    held_out_pieces,
    keep_held_out,
    open_tables,
    wanted,
)
from xvfl.dataset.prepare import InMemoryDataset, Splits, prepare
from xvfl.errors import InputError, ModeError, RunError, unknown
from xvfl.methods import Mode
from xvfl.model.evaluation import EVALUATION, Chunk, Evaluation, evaluate, model_predictions
from xvfl.model.fitting import Fitted, Plan, Show, choose_device, fit
from xvfl.model.model import Model
from xvfl.model.run_dir import CHECKPOINT, MANIFEST, RECORDS, RunDir
from xvfl.model.stream_predict import PredictionSummary, Progress, predict_stream

CONFIG = "config.toml"
ENCODER, BUNDLE = "encoder.json", "bundle"
"""In a party's state folder: its encoder, and what it can predict with alone."""


def train_run(
    config_path: Path, text: str, folder: RunDir, resume: bool, show: Show
) -> Fitted | None:
    """Train into a folder; None when the run there was finished already."""
    config = parse_config(text, str(config_path))
    if folder.has(MANIFEST) and resume:
        folder.manifest()
        return None
    if any(folder.has(name) for name in (MANIFEST, CHECKPOINT, RECORDS, CONFIG)) and not resume:
        raise RunError(
            f"{folder.path}: holds a run already; continue it with --resume or choose another --out"
        )
    choose_device(config.train.device)
    base = config_path.resolve().parent
    with prepared_run(config, base, folder) as prepared:
        folder.create()
        if not folder.has(CHECKPOINT):
            folder.write_text(CONFIG, text)
        plan = Plan(config.net, config.loss, config.train)
        fitted = fit(prepared, plan, folder, resume, show)
        folder.write_text(CONFIG, text)
    if not fitted.interrupted:
        more = {
            "base": str(base),
            "id_column": {
                name: party.id_column for name, party in config.parties.items() if party.id_column
            },
            **_held_out(prepared, folder),
        }
        fitted.model.save(folder, more)
        clear(folder.path)
    return fitted


def _held_out(prepared: InMemoryDataset | OnDiskDataset, folder: RunDir) -> dict[str, Any]:
    if isinstance(prepared, OnDiskDataset):
        test = prepared.about.parts.test > 0
        held_out: list[str] | str = keep_held_out(folder.path)
    else:
        test = len(prepared.test) > 0
        rows = prepared.test if test else prepared.validation
        held_out = [prepared.ids[i] for i in rows.tolist()]
    return {"held_out": held_out, "held_out_is": "test" if test else "validation"}


@contextmanager
def prepared_run(
    config: Config, base: Path, folder: RunDir
) -> Iterator[InMemoryDataset | OnDiskDataset]:
    """Read the tables a configuration names and prepare them, in memory or beside the run."""
    options = {name: party.options for name, party in config.parties.items()}
    splits = Splits(
        config.test_fraction, config.train.validation_fraction, config.train.random_state
    )
    full_threshold, weight = config.loss.full_threshold, config.train.class_weight
    if is_streamed(config, base):
        tables = run_tables(config, base)
        streamed = cached(tables, options, splits, full_threshold, weight, folder.path)
        with closing(streamed):
            yield streamed
        return
    sources, labels = read_run(config, base)
    yield prepare(sources, labels, options, splits, full_threshold, weight)


def is_streamed(config: Config, base: Path) -> bool:
    """Say whether a run keeps its tables on disk."""
    tables = [party.table for party in config.parties.values()]
    own = config.labels.table
    return wanted(config.out_of_core, [*tables, *([own] if own is not None else [])], base)


def run_tables(config: Config, base: Path) -> ParquetTables:
    """Open the Parquet tables a configuration names."""
    labels = config.labels
    parties = {name: (party.table, party.id_column) for name, party in config.parties.items()}
    own = (str(labels.table), labels.id_column)
    return open_tables(parties, labels.party or own, labels.column, base)


def read_run(config: Config, base: Path) -> tuple[dict[str, Source], pd.Series]:
    """Read the tables and labels a configuration names; file names count from `base`."""
    with chdir(base):
        sources = {
            name: read_source(party.table, party.id_column, name)
            for name, party in config.parties.items()
        }
        labels = config.labels
        if labels.party is not None:
            return labels_at_party(sources, labels.party, labels.column)
        return sources, read_labels(
            str(labels.table), id_column=labels.id_column, column=labels.column, where="labels"
        )


def read_source(table: str, id_column: str | None, party: str, fewest: int = 1) -> Source:
    """Read a party's table, or its images from an .npz file."""
    if table.endswith(".npz"):
        return read_images(table)
    return read_table(table, id_column=id_column, party=party, fewest=fewest)


def evaluate_run(folder: RunDir) -> Evaluation:
    """Evaluate a run on the rows it held out, in every mode, and keep the figures beside it."""
    model, said, config = open_run(folder)
    base = Path(said["base"])
    if not base.is_dir():
        raise InputError(
            f"{folder.path}: trained from tables in {base}, which is not there any more; "
            "put them back, or use `xvfl predict`"
        )
    with held_out_parts(folder, model, said, config) as parts:
        result = evaluate(model_predictions(model, parts), said["held_out_is"])
    folder.write_json(EVALUATION, result.to_dict())
    return result


@contextmanager
def held_out_parts(
    folder: RunDir, model: Model, said: Mapping[str, Any], config: Config
) -> Iterator[Iterable[Chunk]]:
    """Read the rows a run held out: all at once, or piece by piece where they were streamed."""
    base, held_out = Path(said["base"]), said["held_out"]
    if isinstance(held_out, str):
        tables = run_tables(config, base)
        with tempfile.TemporaryDirectory(prefix=".xvfl-", dir=folder.path) as space:
            yield held_out_pieces(tables, folder / held_out, model.classes, Path(space))
        return
    sources, labels = read_run(config, base)
    labels = labels[labels.isin(model.classes)]
    held = [each for each in held_out if each in labels.index]
    if not held:
        raise InputError(f"{folder.path}: none of the held-out ids is in the tables any more")
    yield [({name: take(source, held) for name, source in sources.items()}, labels.loc[held])]


def predict_run(
    folder: RunDir,
    inputs: Mapping[str, str],
    mode: Mode | None,
    party: str | None,
    output: Path,
    id_column: str | None,
    progress: Progress,
) -> PredictionSummary:
    """Predict tables from the command line and write the answers; Parquet files in a stream."""
    bundle = find_bundle(folder)
    if bundle is not None:
        model, columns = Model.load(bundle), bundle.manifest().get("id_column", {})
        if mode not in (None, "local"):
            raise ModeError(
                f"mode {mode!r}: the bundle of one party predicts in mode 'local' alone; "
                "the others' nets are with the others"
            )
        mode = "local"
    else:
        model, _, config = open_run(folder)
        columns = {name: party.id_column for name, party in config.parties.items()}
    check_output(output)
    for name in inputs:
        if name not in model.encoders:
            raise InputError(f"--input: {unknown('party', name, model.encoders)}")
    ids = {name: id_column or columns.get(name) for name in inputs}
    if all(is_parquet(table) for table in inputs.values()):
        tables = {
            name: open_parquet(Path(table), ids[name], f"party {name!r}")
            for name, table in inputs.items()
        }
        return predict_stream(model, tables, mode, party, output, progress)
    sources = {name: read_source(each, ids[name], name, 0) for name, each in inputs.items()}
    frame = model.predict(sources, mode, party).frame()
    write_table(frame, output)
    answered = PredictionSummary()
    answered.add(frame)
    return answered


def find_bundle(folder: RunDir) -> RunDir | None:
    """Find what a party can predict with alone, in its state folder; None for other folders."""
    if folder.has(ENCODER) and not folder.has(f"{BUNDLE}/{MANIFEST}"):
        raise ModeError(
            f"{folder.path}: no head was released to this party, so it cannot predict alone; ask "
            "the coordinator to name it under `release`"
        )
    inner = RunDir(folder / BUNDLE) if folder.has(f"{BUNDLE}/{MANIFEST}") else folder
    if not inner.has(MANIFEST):
        return None
    said = inner.manifest()
    if said.get("side") == "coordinator":
        raise ModeError(
            f"{folder.path}: a coordinator's folder has the heads and no party's nets; predict "
            "with a party's folder"
        )
    return inner if "bundle" in said else None


def open_run(folder: RunDir) -> tuple[Model, dict[str, Any], Config]:
    """Load a finished run: its model, its manifest, its configuration."""
    said = folder.manifest()
    model = Model.load(folder)
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"{folder.path}: {CONFIG} is missing; it is a model, not a run") from error
    return model, said, parse_config(text, str(folder / CONFIG))

"""What the commands do: train from a configuration, evaluate and predict from a run folder."""

from collections.abc import Mapping
from contextlib import chdir
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from xvfl.config import Config, parse_config
from xvfl.data.encode import read_images
from xvfl.data.frames import check_output, read_labels, read_table, write_table
from xvfl.errors import InputError, ModeError, RunError, unknown
from xvfl.labels import labels_at_party
from xvfl.methods import MODES, Mode
from xvfl.metrics import all_metrics, majority_rate
from xvfl.model import Model
from xvfl.prepare import Prepared, Source, Splits, prepare, source_ids, take
from xvfl.runs import CHECKPOINT, MANIFEST, RECORDS, Folder
from xvfl.training import Fitted, Plan, Show, choose_device, fit

CONFIG = "config.toml"
EVALUATION = "evaluation.json"
ENCODER, BUNDLE = "encoder.json", "bundle"
"""In a party's state folder: its encoder, and what it can predict with alone."""


def train_run(
    config_path: Path, text: str, folder: Folder, resume: bool, show: Show
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
    prepared = prepare_run(config, base)
    folder.create()
    if not folder.has(CHECKPOINT):
        folder.write_text(CONFIG, text)
    plan = Plan(config.net, config.loss, config.train)
    fitted = fit(prepared, plan, folder, resume, show)
    folder.write_text(CONFIG, text)
    if not fitted.interrupted:
        test = [prepared.ids[i] for i in prepared.test.tolist()]
        held_out = test or [prepared.ids[i] for i in prepared.validation.tolist()]
        more = {
            "base": str(base),
            "id": {name: party.id for name, party in config.parties.items() if party.id},
            "held_out": held_out,
            "held_out_is": "test" if test else "validation",
        }
        fitted.model.save(folder, more)
    return fitted


def prepare_run(config: Config, base: Path) -> Prepared:
    """Read the tables a configuration names and prepare them."""
    sources, labels = read_run(config, base)
    options = {name: party.options for name, party in config.parties.items()}
    splits = Splits(config.test, config.train.validation, config.train.seed)
    weight = config.train.class_weight
    return prepare(sources, labels, options, splits, config.loss.full_at, weight)


def read_run(config: Config, base: Path) -> tuple[dict[str, Source], pd.Series]:
    """Read the tables and labels a configuration names; file names count from `base`."""
    with chdir(base):
        sources = {
            name: read_source(party.table, party.id, name) for name, party in config.parties.items()
        }
        labels = config.labels
        if labels.party is not None:
            return labels_at_party(sources, labels.party, labels.column)
        return sources, read_labels(
            str(labels.table), id_column=labels.id, column=labels.column, where="labels"
        )


def read_source(table: str, id_column: str | None, party: str, fewest: int = 1) -> Source:
    """Read a party's table, or its images from an .npz file."""
    if table.endswith(".npz"):
        return read_images(table)
    return read_table(table, id_column=id_column, party=party, fewest=fewest)


@dataclass(frozen=True)
class Line:
    """One line of an evaluation: a way to predict and how well it did."""

    mode: str
    party: str
    rows: int
    bytes_per_row: float
    """Embeddings that cross between organisations, at 4 bytes a number."""
    metrics: dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """How a model did on rows it was not trained on."""

    rows_are: str
    majority: float
    lines: list[Line]

    def to_dict(self) -> dict[str, Any]:
        """Give a JSON form."""
        return asdict(self)


def evaluate_run(folder: Folder) -> Evaluation:
    """Evaluate a run on the rows it held out, in every mode, and keep the figures beside it."""
    model, said, config = open_run(folder)
    base = Path(said["base"])
    if not base.is_dir():
        raise InputError(
            f"{folder.path}: trained from tables in {base}, which is not there any more; "
            "put them back, or use `xvfl predict`"
        )
    sources, labels = read_run(config, base)
    labels = labels[labels.isin(model.classes)]
    held = [each for each in said["held_out"] if each in labels.index]
    if not held:
        raise InputError(f"{folder.path}: none of the held-out ids is in the tables any more")
    result = evaluate(
        model, {n: take(s, held) for n, s in sources.items()}, labels.loc[held], said["held_out_is"]
    )
    folder.write_json(EVALUATION, result.to_dict())
    return result


def evaluate(
    model: Model, sources: Mapping[str, Source], labels: pd.Series, rows_are: str
) -> Evaluation:
    """Predict in every mode the model has and compare with the labels."""
    lines = []
    for mode in (*MODES, "peers"):
        if mode not in model.method.modes:
            continue
        for party in [None] if mode == "collaborative" else list(sources):
            if party is None or source_ids(sources[party]):
                lines.append(_line(model, sources, labels, mode, party))
    order = {"local": 0, "assisted": 1, "peers": 2, "collaborative": 3}
    lines.sort(key=lambda line: order[line.mode])
    y = np.asarray(pd.Categorical(labels, categories=model.classes).codes)
    return Evaluation(rows_are, majority_rate(y), lines)


def _line(
    model: Model, sources: Mapping[str, Source], labels: pd.Series, mode: Mode, party: str | None
) -> Line:
    said = model.predict(sources, mode, party)
    common = pd.Index(said.ids).get_indexer(labels.index)
    common = common[common >= 0]
    y = pd.Categorical(labels.loc[[said.ids[i] for i in common]], categories=model.classes).codes
    metrics = all_metrics(said.proba[common], np.asarray(y, dtype=np.int64))
    moved = float(said.moved.mean()) * model.width * 4
    return Line(mode, party or "all", len(common), round(moved, 1), metrics)


def predict_run(
    folder: Folder,
    inputs: Mapping[str, str],
    mode: Mode | None,
    party: str | None,
    output: Path,
    id_column: str | None,
) -> pd.DataFrame:
    """Predict tables from the command line and write the answers."""
    bundle = find_bundle(folder)
    if bundle is not None:
        model, columns = Model.load(bundle), bundle.manifest().get("id", {})
        if mode not in (None, "local"):
            raise ModeError(
                f"mode {mode!r}: the bundle of one party predicts in mode 'local' alone; "
                "the others' nets are with the others"
            )
        mode = "local"
    else:
        model, _, config = open_run(folder)
        columns = {name: party.id for name, party in config.parties.items()}
    check_output(output)
    sources = {}
    for name, table in inputs.items():
        if name not in model.encoders:
            raise InputError(f"--input: {unknown('party', name, model.encoders)}")
        sources[name] = read_source(table, id_column or columns.get(name), name, fewest=0)
    frame = model.predict(sources, mode, party).frame()
    write_table(frame, output)
    return frame


def find_bundle(folder: Folder) -> Folder | None:
    """Find what a party can predict with alone, in its state folder; None for other folders."""
    if folder.has(ENCODER) and not folder.has(f"{BUNDLE}/{MANIFEST}"):
        raise ModeError(
            f"{folder.path}: no head was released to this party, so it cannot predict alone; ask "
            "the coordinator to name it under `release`"
        )
    inner = Folder(folder / BUNDLE) if folder.has(f"{BUNDLE}/{MANIFEST}") else folder
    if not inner.has(MANIFEST):
        return None
    said = inner.manifest()
    if said.get("side") == "coordinator":
        raise ModeError(
            f"{folder.path}: a coordinator's folder has the heads and no party's nets; predict "
            "with a party's folder"
        )
    return inner if "bundle" in said else None


def open_run(folder: Folder) -> tuple[Model, dict[str, Any], Config]:
    """Load a finished run: its model, its manifest, its configuration."""
    said = folder.manifest()
    model = Model.load(folder)
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"{folder.path}: {CONFIG} is missing; it is a model, not a run") from error
    return model, said, parse_config(text, str(folder / CONFIG))

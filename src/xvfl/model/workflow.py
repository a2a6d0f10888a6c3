"""Train from a configuration file, evaluate and predict from a run folder."""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import chdir, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from xvfl.config import Config, parse_config
from xvfl.data.frames import read_table
from xvfl.data.images import read_images
from xvfl.data.labels import labels_of_party, read_labels
from xvfl.data.parquet import is_parquet, open_parquet
from xvfl.data.sources import Source, take_ids
from xvfl.data.table_writer import check_output, write_table
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.on_disk.cache import prepare_cached, remove_cache, save_held_out
from xvfl.dataset.on_disk.held_out import held_out_chunks, no_held_out_rows
from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset
from xvfl.dataset.on_disk.parquet_tables import ParquetTables, open_tables, trains_from_disk
from xvfl.dataset.overlap import Overlap, check_tables
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.errors import InputError, ModeError, RunError, unknown
from xvfl.methods import Mode, require_task
from xvfl.model.completion_examples import COMPLETION, completion_examples
from xvfl.model.decision_rule import check_threshold
from xvfl.model.encoder_runs import tables_on_disk
from xvfl.model.evaluation import Chunk, Evaluation, evaluate, model_predictions
from xvfl.model.explain.explain_model import ExplainOptions, explain
from xvfl.model.explain.explanation import EXPLANATION, Explanation
from xvfl.model.fit_report import REPORT
from xvfl.model.fitting import (
    Dataset,
    FitResult,
    ProgressCallback,
    TrainingPlan,
    choose_device,
    fit,
    resolve_for_dataset,
    uses_unlabeled,
)
from xvfl.model.given_tables import predict_given
from xvfl.model.missing_map import MISSING, dataset_map
from xvfl.model.missing_rates import MISSING_RATES, score_missing_rates
from xvfl.model.model import Model
from xvfl.model.prediction import used_tables
from xvfl.model.run_dir import CHECKPOINT, EVALUATION, MANIFEST, RECORDS, RunDir
from xvfl.model.run_summary import record_run, recorded_warnings
from xvfl.model.stream_predict import PredictionSummary, predict_stream
from xvfl.options import Options, resolve_privacy
from xvfl.primitives.seeding import derive_seed
from xvfl.system.report import Report, no_report

CONFIG = "config.toml"
SAMPLE_ROWS = 1000
"""Held-out rows for the examples and the missing rates."""
HELD_OUT, HEADS = "held_out.json", "heads.json"
"""In the state folder of a party that uploads, and of a coordinator that trains on uploads."""
ENCODER, BUNDLE, RELEASE = "encoder.json", "bundle", "release.json"
"""In a party's state folder: its encoder, the model with which it predicts locally, and which
release that is."""


def train_run(
    config_path: Path,
    text: str,
    folder: RunDir,
    resume: bool,
    on_progress: ProgressCallback,
    on_overlap: Callable[[Overlap], None] = lambda overlap: None,
) -> FitResult | None:
    """Train into a folder; return None if the run to resume is already finished.

    `on_overlap` is called with the rows of each party before training starts, not when it resumes.
    """
    config = parse_config(text, str(config_path))
    if folder.has(MANIFEST) and resume:
        folder.manifest()
        return None
    if folder.has(CHECKPOINT) and resume:
        # Reject a checkpoint of another format before the tables are read.
        folder.load_tensors(CHECKPOINT)
    if any(folder.has(name) for name in (MANIFEST, CHECKPOINT, RECORDS, CONFIG)) and not resume:
        raise RunError(
            f"{folder.path}: already contains a run; continue it with --resume or choose another "
            "--out"
        )
    choose_device(config.train.device)
    require_task(config.loss.method, config.labels.task)
    check_threshold(config.labels.threshold)
    base_dir = config_path.resolve().parent
    with recorded_warnings() as texts, open_dataset(config, base_dir, folder) as dataset:
        options = resolve_for_dataset(
            dataset, config.net, config.loss, config.train, config.privacy
        )
        folder.create()
        if not folder.has(CHECKPOINT):
            on_overlap(dataset.overlap())
            folder.write_text(CONFIG, text)
        plan = TrainingPlan(options, threshold=config.labels.threshold)
        description = _describe_run(config, dataset, options)
        with record_run(folder, {**description, "warnings": texts}) as about:
            folder.write_json(MISSING, dataset_map(dataset))
            result = fit(dataset, plan, folder, resume, on_progress)
            about["state"] = "stopped" if result.interrupted else "ended"
        folder.write_text(CONFIG, text)
    if not result.interrupted:
        extra = {
            "base_dir": str(base_dir),
            "id_column": {
                name: party.id_column for name, party in config.parties.items() if party.id_column
            },
            "rows": asdict(result.rows),
            "overlap": result.overlap,
            **_held_out(dataset, folder),
        }
        result.model.save(folder, extra)
        if result.report is not None:
            folder.write_json(REPORT, result.report.to_dict())
        remove_cache(folder.path)
    return result


def _describe_run(config: Config, dataset: Dataset, options: Options) -> dict[str, Any]:
    """Describe a run that starts, for `run.json`."""
    counts = dataset.row_counts()
    overlap = dataset.overlap()
    return {
        "side": "run",
        "method": config.loss.method,
        "task": config.labels.task,
        "label": config.labels.column,
        "score_name": dataset.task.score_name,
        "epochs": options.train.epochs,
        "rows": asdict(counts),
        "parties": {
            name: {
                "table": _table_name(config.parties[name].table),
                "features": layout.raw,
                "images": layout.image is not None,
                **overlap[name],
            }
            for name, layout in dataset.layouts.items()
        },
    }


def _table_name(table: str) -> str:
    return "SQL query" if table.startswith("sql:") else Path(table).name


def _held_out(dataset: Dataset, folder: RunDir) -> dict[str, Any]:
    if isinstance(dataset, OnDiskDataset):
        test = dataset.sizes.test > 0
        held_out: list[str] | str = save_held_out(folder.path)
    else:
        test = len(dataset.test) > 0
        rows = dataset.test if test else dataset.validation
        held_out = [dataset.ids[i] for i in rows.tolist()]
    return {"held_out": held_out, "held_out_split": "test" if test else "validation"}


@contextmanager
def open_dataset(config: Config, base_dir: Path, folder: RunDir) -> Iterator[Dataset]:
    """Read and encode the tables of a configuration, in memory or on disk in the run folder."""
    options = {name: party.options for name, party in config.parties.items()}
    train = config.train
    splits = Splits(config.test_fraction, train.validation_fraction, train.random_state)
    unlabeled = config.use_unlabeled and uses_unlabeled(config.loss, config.privacy)
    plan = PreparationPlan(
        options,
        splits,
        config.loss.full_threshold,
        train.class_weight,
        unlabeled,
        task=config.labels.task,
    )
    if trains_from_disk(config, base_dir):
        if not resolve_privacy(config.privacy, federated=False).sends_gradients:
            raise tables_on_disk()
        tables = open_run_tables(config, base_dir)
        with closing(prepare_cached(tables, plan, folder.path)) as rows:
            yield rows
    else:
        yield prepare_in_memory(*read_run_tables(config, base_dir, unlabeled), plan)


def open_run_tables(config: Config, base_dir: Path) -> ParquetTables:
    """Open the Parquet tables of a configuration."""
    labels = config.labels
    parties = {name: (party.table, party.id_column) for name, party in config.parties.items()}
    own = (str(labels.table), labels.id_column)
    return open_tables(parties, labels.party or own, labels.column, base_dir)


def read_run_tables(
    config: Config, base_dir: Path, allow_missing: bool = False
) -> tuple[dict[str, Source], pd.Series]:
    """Read the tables and labels of a configuration; file names are relative to `base_dir`.

    Missing labels give a warning, except with `allow_missing`.
    """
    with chdir(base_dir):
        sources = {
            name: read_source(party.table, party.id_column, name)
            for name, party in config.parties.items()
        }
        labels = config.labels
        if labels.party is not None:
            return labels_of_party(
                sources,
                labels.party,
                labels.column,
                allow_missing=allow_missing,
                task=labels.task,
            )
        return sources, read_labels(
            str(labels.table),
            id_column=labels.id_column,
            column=labels.column,
            allow_missing=allow_missing,
            task=labels.task,
        )


def is_image_file(table: str) -> bool:
    """Return whether a party's table is a file of images."""
    return table.endswith(".npz")


def read_source(table: str, id_column: str | None, party: str, min_rows: int = 1) -> Source:
    """Read a party's table of at least `min_rows` rows, or its images from an .npz file."""
    if is_image_file(table):
        return read_images(table)
    return read_table(table, id_column=id_column, party=party, min_rows=min_rows)


def evaluate_run(folder: RunDir, report: Report = no_report) -> Evaluation:
    """Evaluate a run on its held-out rows, in every mode, and write evaluation.json.

    Also write how modes depend on missing features, and examples of completed cells.
    """
    model, manifest, config = open_run(folder)
    _require_tables(folder, manifest)
    split = manifest["held_out_split"]
    sample: list[Chunk] = []
    with held_out_rows(folder, model, manifest, config) as chunks:
        counted = _report_rows(_keep_sample(chunks, sample), manifest["rows"][split], report)
        result = evaluate(model_predictions(model, counted), split, model.task)
    folder.write_json(EVALUATION, result.to_dict())
    for sources, labels in sample:
        report("missing rates", 1.0)
        folder.write_json(MISSING_RATES, score_missing_rates(model, sources, labels))
        folder.write_json(COMPLETION, completion_examples(model, sources))
    return result


def _keep_sample(chunks: Iterable[Chunk], sample: list[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks; keep rows of the first one, evenly spaced."""
    for sources, labels in chunks:
        if not sample:
            ids = list(labels.index[:: -(-len(labels) // SAMPLE_ROWS)])
            some = {name: take_ids(source, ids) for name, source in sources.items()}
            sample.append((some, labels.loc[ids]))
        yield sources, labels


def _report_rows(chunks: Iterable[Chunk], total: int, report: Report) -> Iterator[Chunk]:
    """Report the number of rows after each chunk."""
    done = 0
    for sources, labels in chunks:
        yield sources, labels
        done += len(labels)
        report(f"{done:,} rows", done / max(total, done))


@contextmanager
def held_out_rows(
    folder: RunDir, model: Model, manifest: Mapping[str, Any], config: Config
) -> Iterator[Iterable[Chunk]]:
    """Read the held-out rows of a run: at once, or in chunks if it was trained out of core."""
    base_dir, held_out = Path(manifest["base_dir"]), manifest["held_out"]
    if isinstance(held_out, str):
        tables = open_run_tables(config, base_dir)
        with tempfile.TemporaryDirectory(prefix=".xvfl-", dir=folder.path) as space:
            yield held_out_chunks(tables, folder / held_out, model.task, Path(space))
        return
    sources, labels = read_run_tables(config, base_dir, allow_missing=True)
    check_tables(sources)
    labels = labels[model.task.known(labels.to_numpy())]
    ids = [each for each in held_out if each in labels.index]
    if not ids:
        raise no_held_out_rows(folder.path)
    yield [({name: take_ids(source, ids) for name, source in sources.items()}, labels.loc[ids])]


def explain_run(folder: RunDir, options: ExplainOptions, report: Report) -> Explanation:
    """Explain a run on its held-out rows, and write explanation.json and explanation.html."""
    model, manifest, config = open_run(folder)
    _require_tables(folder, manifest)
    with held_out_rows(folder, model, manifest, config) as chunks:
        sources, labels = sample_chunks(
            chunks, options.max_rows, options.ids or (), model.random_state
        )
    result = explain(model, sources, labels, options, report)
    folder.write_json(EXPLANATION, result.to_dict())
    title = f"Explanation of {folder.path.resolve().name}"
    folder.write_text("explanation.html", result.to_html(title))
    return result


def _require_tables(folder: RunDir, manifest: Mapping[str, Any]) -> None:
    base_dir = Path(manifest["base_dir"])
    if not base_dir.is_dir():
        raise InputError(
            f"{folder.path}: trained from tables in {base_dir}, which no longer exists; "
            "restore them, or use `xvfl predict`"
        )


def sample_chunks(chunks: Iterable[Chunk], limit: int, kept: Collection[str], seed: int) -> Chunk:
    """Combine chunks; of more rows than `limit`, keep a random sample and the rows in `kept`."""
    rng = np.random.default_rng(derive_seed(seed, "sample of chunks"))
    iterator = iter(chunks)
    sources, labels = next(iterator)
    keys = rng.random(len(labels))
    for more, more_labels in iterator:
        # Only frames come in several chunks.
        sources = {
            name: pd.concat([cast(pd.DataFrame, source), cast(pd.DataFrame, more[name])])
            for name, source in sources.items()
        }
        labels = pd.concat([labels, more_labels])
        keys = np.append(keys, rng.random(len(more_labels)))
        chosen = np.argsort(keys)[:limit]
        chosen = np.union1d(chosen, np.flatnonzero(labels.index.isin(list(kept))))
        labels, keys = labels.iloc[chosen], keys[chosen]
        sources = {name: take_ids(each, list(labels.index)) for name, each in sources.items()}
    return sources, labels


def predict_run(
    folder: RunDir,
    inputs: Mapping[str, str],
    mode: Mode | None,
    party: str | None,
    output: Path,
    id_column: str | None,
    report: Report,
    strict: bool = False,
) -> PredictionSummary:
    """Predict tables and write the predictions to a file; Parquet files are streamed.

    `strict` refuses tables without rows, or without a column used in training.
    """
    bundle = open_bundle(folder)
    if bundle is not None:
        model, columns = Model.load(bundle), bundle.manifest().get("id_column", {})
        if mode not in (None, "local"):
            raise ModeError(
                f"mode {mode!r}: a party's folder has only its own nets, so it predicts in mode "
                "'local' only; `xvfl predict-federation` predicts with other parties"
            )
        mode = "local"
    else:
        model, _, config = open_run(folder)
        columns = {name: party.id_column for name, party in config.parties.items()}
    check_output(output)
    for name in inputs:
        if name not in model.encoders:
            raise InputError(f"tables: {unknown('party', name, model.encoders)}")
    ids = {name: id_column or columns.get(name) for name in inputs}
    if all(is_parquet(table) for table in inputs.values()):
        tables = {
            name: open_parquet(Path(table), ids[name], f"party {name!r}")
            for name, table in inputs.items()
        }
        summary = predict_stream(model, tables, mode, party, output, report, strict)
    else:
        sources = {name: read_source(each, ids[name], name, 0) for name, each in inputs.items()}
        check_tables(used_tables(model.resolve_request(sources, mode, party), sources))
        frame = predict_given(model, sources, mode, party, None, strict).frame()
        write_table(frame, output)
        summary = PredictionSummary(model.task.prior_name)
        summary.add(frame)
    summary.warn()
    return summary


def open_bundle(folder: RunDir) -> RunDir | None:
    """Return the local model in a party's state folder; None for a run or model folder."""
    if folder.has(RELEASE):
        _check_not_revoked(folder)
    party = folder.has(ENCODER) or folder.has(HELD_OUT)
    if party and not folder.has(f"{BUNDLE}/{MANIFEST}"):
        raise ModeError(
            f"{folder.path}: no head was released to this party, so it cannot predict locally; "
            "ask the coordinator to run `xvfl release`"
        )
    inner = RunDir(folder / BUNDLE) if folder.has(f"{BUNDLE}/{MANIFEST}") else folder
    manifest = inner.manifest() if inner.has(MANIFEST) else {}
    if folder.has(HEADS) or manifest.get("side") == "coordinator":
        raise ModeError(
            f"{folder.path}: a coordinator's folder has the heads but no party's nets; predict "
            "with a party's folder, or with `xvfl predict-federation`"
        )
    return inner if "bundle" in manifest else None


def _check_not_revoked(folder: RunDir) -> None:
    release = folder.read_json(RELEASE)
    if release.get("revoked") is not None:
        raise ModeError(
            f"{folder.path}: the coordinator revoked the head of run {release.get('run')!r} at "
            f"{release.get('created')} ({release['revoked']}); ask it for a new release"
        )


def open_run(folder: RunDir) -> tuple[Model, dict[str, Any], Config]:
    """Load model, manifest and configuration of a finished run."""
    manifest = folder.manifest()
    model = Model.load(folder)
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"{folder.path}: {CONFIG} is missing; expected a folder that `xvfl train` wrote"
        ) from error
    return model, manifest, parse_config(text, str(folder / CONFIG))

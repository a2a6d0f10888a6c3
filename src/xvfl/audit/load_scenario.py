"""Read rows and settings to audit: of a training configuration, a run folder or one party."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from xvfl.audit.simulation import Scenario
from xvfl.audit.sweep import UploadScenario
from xvfl.audit.upload_heads import LabeledSplit
from xvfl.config import Config, EncoderConfig, TableOptions, parse_config, read_config
from xvfl.data.labels import encode_labels, labels_of_party
from xvfl.data.sources import Source, encode, fit_encoder, source_ids, take_rows
from xvfl.dataset.in_memory import InMemoryDataset, prepare_in_memory, to_party_table
from xvfl.dataset.on_disk.parquet_tables import trains_from_disk
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.errors import InputError
from xvfl.federation.upload.encoder_net import encoder_config
from xvfl.model.run_dir import MANIFEST, RunDir
from xvfl.model.workflow import open_run, read_run_tables
from xvfl.options import resolve_options, resolve_privacy
from xvfl.primitives.layout import any_image
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import align_rows, choose_full_threshold, observation_levels
from xvfl.primitives.task import Classification

HELD_OUT = 0.15
"""Share of the rows that an encoder does not learn from."""


def load_scenario(
    path: Path, max_rows: int, max_epochs: int | None = None
) -> Scenario | UploadScenario:
    """Read a configuration or a run, with a random sample of at most `max_rows` labeled rows.

    Parties upload, unless the label protection is `off` or `noise`: then training is interactive.
    """
    config, base_dir = _read(path)
    if trains_from_disk(config, base_dir):
        raise InputError(
            f"{path}: the audit reads tables into memory, and these are too large; audit a sample: "
            'table = "sql:SELECT * FROM … USING SAMPLE 10000 ROWS"'
        )
    interactive = resolve_privacy(config.privacy, federated=True).sends_gradients
    if interactive and config.labels.task == "regression":
        raise InputError(
            f"{path}: the audit of interactive training attacks classes, got labels.task = "
            "'regression'; bin the label into classes to audit the same tables"
        )
    sources, labels = read_run_tables(config, base_dir)
    train = config.train
    if len(labels) > max_rows:
        labels = labels.sample(max_rows, random_state=train.random_state)
    options = {name: party.options for name, party in config.parties.items()}
    # No test rows: the attacks need none.
    splits = Splits(0.0, train.validation_fraction, train.random_state)
    plan = PreparationPlan(
        options, splits, config.loss.full_threshold, train.class_weight, task=config.labels.task
    )
    dataset = prepare_in_memory(sources, labels, plan)
    if interactive:
        return Scenario.of(config, dataset, max_epochs)
    resolved = resolve_options(
        config.net,
        config.loss,
        train,
        config.privacy,
        federated=True,
        image=any_image(dataset.layouts),
        parties=len(dataset.layouts),
        rows=dataset.row_counts().labeled,
    )
    return upload_scenario(dataset, encoder_config(resolved), train.random_state)


def load_party_scenario(
    name: str,
    source: Source,
    options: TableOptions,
    encoder: EncoderConfig,
    label: str | None,
    max_rows: int,
) -> UploadScenario:
    """Take a party's own table, with a random sample of at most `max_rows` rows.

    A column `label` stands in for the label that the coordinator has; without it, accuracy is not
    measured.
    """
    order = np.random.default_rng(0).permutation(len(source_ids(source)))
    source = take_rows(source, order[:max_rows])
    labels = None
    if label is not None:
        sources, labels = labels_of_party({name: source}, name, label)
        source = sources[name]
    count = len(source_ids(source))
    learned = torch.arange(count - round(HELD_OUT * count))
    fitted = fit_encoder([take_rows(source, learned.numpy())], options, name)
    table = to_party_table(fitted.layout, encode(fitted, source))
    scenario = UploadScenario({name: table}, {name: encoder}, {name: learned})
    if labels is None:
        return scenario
    classes, codes = encode_labels(labels)
    handles = torch.from_numpy(pd.Index(source_ids(source)).get_indexer(labels.index))
    threshold = encoder.full_threshold or choose_full_threshold(table.observed)
    levels = observation_levels(table.observed, threshold)
    rows = align_rows(handles.unsqueeze(1), [levels], torch.from_numpy(codes))
    learns = handles < len(learned)
    validation = rows.take((~learns).nonzero().flatten())
    training = rows.take(learns.nonzero().flatten())
    image = table.layout.image is not None
    split = LabeledSplit(training, validation, validation, Classification(classes), image)
    return replace(scenario, split=split)


def upload_scenario(dataset: InMemoryDataset, encoder: EncoderConfig, seed: int) -> UploadScenario:
    """Hold rows out as the coordinator of a federation does: without looking at labels."""
    rows = torch.cat([dataset.train, dataset.validation])
    rng = named_generator("cpu", seed, "held out")
    order = rows[torch.randperm(len(rows), generator=rng)]
    validation = dataset.rows.take(order[: len(dataset.validation)])
    training = dataset.rows.take(order[len(dataset.validation) :])
    learned = {}
    for place, (name, table) in enumerate(dataset.tables.items()):
        held_out = validation.handles[:, place]
        learns = torch.ones(len(table), dtype=torch.bool)
        learns[held_out[held_out >= 0]] = False
        learned[name] = learns.nonzero().flatten()
    image = any_image(dataset.layouts)
    split = LabeledSplit(training, validation, validation, dataset.task, image)
    encoders = dict.fromkeys(dataset.tables, encoder)
    return UploadScenario(dataset.tables, encoders, learned, split, seed)


def _read(path: Path) -> tuple[Config, Path]:
    """Return the configuration, and the folder that its file names are relative to."""
    if not path.is_dir():
        return parse_config(read_config(path), str(path)), path.resolve().parent
    folder = RunDir(path)
    if not folder.has(MANIFEST):
        raise InputError(
            f"{path}: expected a configuration or a finished run folder of `xvfl train`"
        )
    _, manifest, config = open_run(folder)
    base_dir = Path(manifest["base_dir"])
    if not base_dir.is_dir():
        raise InputError(
            f"{path}: trained from tables in {base_dir}, which no longer exists; restore them"
        )
    return config, base_dir

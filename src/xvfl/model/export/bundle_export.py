"""Build the bundle of a model: nets as ONNX, encoders, calibration, summary, model card."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xvfl.data.encoded import Encoded
from xvfl.data.sources import Source
from xvfl.errors import InputError, ModeError, RunError, unknown
from xvfl.federation.upload.private_worker import reference_rows
from xvfl.methods.base import Mode, mode_key
from xvfl.model.export.model_card import model_card
from xvfl.model.export.onnx_export import to_onnx
from xvfl.model.export.prediction_graph import PredictionGraph
from xvfl.model.export.row_check import RowCheck, check_rows
from xvfl.model.model import Model
from xvfl.model.prediction import PredictRequest
from xvfl.model.run_dir import EVALUATION, RunDir, finite_json
from xvfl.model.workflow import open_bundle
from xvfl.primitives.rows import PartyTable
from xvfl.system.files import atomic_write
from xvfl.training.predict import logits
from xvfl.version import VERSION
from xvfl_serve.bundle import CARD, CELLS, Bundle, pack, unpack
from xvfl_serve.cell_model import write_arrays
from xvfl_serve.encoding.encoders import EncodedRows
from xvfl_serve.predictor import Predictor
from xvfl_serve.row_report import COMPLETED, LOGITS, Output

TOLERANCE = 1e-5
"""Largest difference of probabilities by ONNX and by torch."""
CHECKED_ROWS = 64


def export_run(
    folder: RunDir,
    out: Path,
    party: str | None = None,
    signing_key: Path | None = None,
    own_rows: Source | None = None,
) -> tuple[Predictor, RowCheck | None]:
    """Write the bundle of a run, or of a party's released model; return its predictor and test.

    Parameters
    ----------
    folder
        A finished run, a saved model, or a party's state folder with a released head.
    out
        The file to write.
    party
        Export this party alone, in mode local. Default: all parties, in all modes.
    signing_key
        An Ed25519 private key (PEM) that signs the bundle.
    own_rows
        Rows of the only party; the bundle must predict them as torch does.
    """
    source = open_bundle(folder) or folder
    model, manifest = Model.load(source), source.manifest()
    evaluation = source.read_json(EVALUATION) if source.has(EVALUATION) else None
    summary = training_summary(model, manifest, evaluation)
    data = build_bundle(model, party, summary, signing_key)
    predictor = Predictor(unpack(data))
    check_equal(model, predictor)
    check = None
    if own_rows is not None:
        (name,) = predictor.encoders
        check = check_rows(model, predictor, name, own_rows)
    try:
        with atomic_write(out) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from error
    return predictor, check


def build_bundle(
    model: Model,
    party: str | None = None,
    summary: Mapping[str, Any] | None = None,
    signing_key: Path | None = None,
) -> bytes:
    """Return the bundle of a model: of one party, or of all; see `export_run`."""
    if model.differential_privacy is not None and model.adds_noise:
        raise ModeError(
            "a model with differential privacy adds noise to each row, so it cannot be exported; "
            "export the released model of a party, which predicts alone and without noise"
        )
    if party is not None and party not in model.encoders:
        raise InputError(f"--party: {unknown('party', party, model.encoders)}")
    parties = [party] if party is not None else list(model.encoders)
    outputs = list(_outputs(model, parties))
    files = dict(_nets(model, parties, outputs))
    cells = {}
    if model.cells is not None:
        tables = [name for name in parties if name in model.cells.parties]
        numbers = [model.cells.parties.index(name) for name in tables]
        files[CELLS] = write_arrays(model.cells.model.select(numbers).to_arrays())
        cells = {"cells": tables}
    for number, name in enumerate(parties):
        text = json.dumps(finite_json(model.encoders[name].to_dict()), ensure_ascii=False)
        files[f"encoders/{number}.json"] = text.encode()
    manifest = {
        "version": VERSION,
        "task": {"kind": model.task.kind, **model.task.to_dict()},
        "prior": model.prior,
        "class_factors": model.class_factors,
        "flags": {
            "cross_completion": model.completes,
            "partial_peers": model.loss.self_completion_weight > 0,
            "hides_missing": model.differential_privacy is not None,
        },
        "parties": [
            {
                "name": name,
                "encoder": f"encoders/{number}.json",
                "full_threshold": model.full_threshold[name],
            }
            for number, name in enumerate(parties)
        ],
        "outputs": [vars(output) for output in outputs],
        **cells,
        "training": dict(summary or training_summary(model, {}, None)),
    }
    files[CARD] = model_card(manifest, {name: model.encoders[name] for name in parties}).encode()
    return pack(Bundle(manifest, files), signing_key)


def _outputs(model: Model, parties: Sequence[str]) -> Iterator[Output]:
    """Yield the predictions that a bundle of these parties offers."""
    modes = model.method.modes
    if "local" in modes:
        yield from (_output(model, "local", party, [party], parties) for party in parties)
    if len(parties) < 2:
        return
    if "assisted" in modes:
        yield from (_output(model, "assisted", party, parties, parties) for party in parties)
    if "collaborative" in modes:
        yield _output(model, "collaborative", "", parties, parties)


def _output(
    model: Model, mode: Mode, party: str, inputs: Sequence[str], parties: Sequence[str]
) -> Output:
    completing = set(model.info(PredictRequest(mode, party or None)).completing_modes)
    number = f"-{parties.index(party)}" if party else ""
    completion = f"nets/completed{number if mode == 'local' else ''}.onnx"
    return Output(
        mode,
        party,
        tuple(inputs),
        f"nets/{mode}{number}.onnx",
        completion if model.completes and _images(model, inputs) else "",
        model.temperatures.get(mode_key(mode, party), 1.0),
        model.temperatures.get(mode_key("local", party), 1.0),
        mode in completing,
        "local" in completing,
    )


def _nets(
    model: Model, parties: Sequence[str], outputs: Sequence[Output]
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and contents of each file of nets."""
    completions = {}
    for output in outputs:
        numbers = [parties.index(name) for name in output.parties]
        mode: Mode = output.mode  # type: ignore[assignment]
        graph = PredictionGraph(model, output.parties, mode, output.party)
        yield output.graph, to_onnx(graph, numbers, [LOGITS])
        if output.completion:
            completions[output.completion] = (output.parties, numbers)
    for file, (names, numbers) in completions.items():
        results = [f"{COMPLETED}.{numbers[names.index(name)]}" for name in _images(model, names)]
        yield file, to_onnx(PredictionGraph(model, names), numbers, results)


def _images(model: Model, parties: Sequence[str]) -> list[str]:
    """Return the parties with images, which nets complete."""
    return [name for name in parties if model.layouts[name].image is not None]


def training_summary(
    model: Model, manifest: Mapping[str, Any], evaluation: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Summarize the training, without ids."""
    chosen = {name: manifest[name] for name in ("rows", "run", "release") if name in manifest}
    summary: dict[str, Any] = {
        "method": model.loss.method,
        "members": model.net.members,
        "parties": list(model.encoders),
        "label_protection": model.privacy.label_protection,
        **chosen,
    }
    if evaluation is not None:
        summary["evaluation"] = dict(evaluation)
    finite: dict[str, Any] = finite_json(summary)
    return finite


def check_equal(model: Model, predictor: Predictor) -> None:
    """Raise unless the bundle predicts what the model does, on random rows with gaps."""
    names = list(predictor.encoders)
    tables = {name: _first_rows(reference_rows(model.layouts[name])) for name in names}
    for output in predictor.outputs.values():
        encoded = [tables[name] for name in output.parties]
        torch_logits = _torch_logits(model, output, encoded)
        (found,) = predictor.run(output.graph, output.parties, encoded, [LOGITS])
        worst = float(np.abs(_softmax(found) - _softmax(torch_logits)).max())
        if not worst <= TOLERANCE:
            raise RunError(
                f"the exported nets differ from torch's by {worst:.1e} in mode {output.mode!r}; "
                "this is a defect of the exporter: report it with the versions of torch and onnx"
            )


def _torch_logits(model: Model, output: Output, encoded: Sequence[EncodedRows]) -> Any:
    ids = [str(row) for row in range(len(encoded[0].values))]
    tables = {
        name: Encoded(ids, each.values, each.codes, each.observed, [""] * len(ids))
        for name, each in zip(output.parties, encoded, strict=True)
    }
    rows, federation = model.rows_of(tables, ids)
    places = [list(model.encoders).index(name) for name in output.parties]
    method = model.method.select_parties(places)
    mode: Mode = output.mode  # type: ignore[assignment]
    with torch.random.fork_rng(devices=[]):
        return logits(method, federation, rows, mode, output.kind.index).numpy()


def _first_rows(table: PartyTable) -> EncodedRows:
    values, codes, observed = (
        part[:CHECKED_ROWS].numpy() for part in (table.values, table.codes, table.observed)
    )
    return EncodedRows(values, codes, observed, [])


def _softmax(logits: Any) -> Any:
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)

"""Predict from a bundle with numpy and ONNX Runtime alone.

Shapes: n rows, k parties, C classes (of a number, 1).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from xvfl_serve.bundle import CELLS, MAX_CELLS, Bundle, read_bundle
from xvfl_serve.cell_model import read_cells
from xvfl_serve.encoding.columns import Notes
from xvfl_serve.encoding.encoders import (
    EncodedRows,
    Encoder,
    ImageRows,
    build_encoder,
    write_notes,
)
from xvfl_serve.errors import BundleError, RequestError, bundle_errors, unknown
from xvfl_serve.json_size import measure_json
from xvfl_serve.onnx_check import check_self_contained
from xvfl_serve.row_report import (
    COMPLETED,
    LOGITS,
    NOT_OBSERVED,
    ModelFlags,
    Output,
    RowReport,
    report_rows,
)
from xvfl_serve.tasks import build_task

Floats = NDArray[np.float64]
BATCH = 512
"""Rows that the nets compute at once."""
FIXED_ROWS = (1, 16)
"""Numbers of rows for which there are faster sessions."""
MAX_PARTIES = 100
MAX_PIXELS = 2**20
"""Numbers of the images of one row, of all parties: 1024 times 1024 in one channel."""


@dataclass(frozen=True)
class Options:
    """What an answer holds besides the prediction."""

    completed: bool = False
    """The completed features of each row."""
    importance: bool = False
    """The importance of each observed feature."""


class Predictor:
    """A loaded bundle.

    Parameters
    ----------
    bundle : Bundle
        The contents of a bundle.
    threads : int, default=1
        Threads of the nets; several requests are computed at once in any case.

    Raises
    ------
    BundleError
        The bundle's contents do not fit together, or its task is not supported.

    Examples
    --------
    >>> predictor = Predictor.load("bank.xvfl")  # doctest: +SKIP
    >>> predictor.predict([{"age": 35, "job": None}])  # doctest: +SKIP
    [{'prediction': 'no', 'probabilities': {'no': 0.9, 'yes': 0.1}, 'mode': 'local', ...}]
    """

    def __init__(self, bundle: Bundle, threads: int = 1) -> None:
        self.bundle = bundle
        with bundle_errors("the bundle"):
            self._build(threads)
            # The first run of a session is slow: do it before the first request.
            for output in self.outputs.values():
                empty: Any = None if output.mode == "local" else {}
                for count in (*FIXED_ROWS, FIXED_ROWS[-1] + 1):
                    self.predict([empty] * count, output.mode, output.party or None)

    def _build(self, threads: int) -> None:
        """Build encoders, task and nets from the bundle."""
        bundle, manifest = self.bundle, self.bundle.manifest
        _check_encoders(bundle)
        self.encoders: dict[str, Encoder] = {
            each["name"]: build_encoder(bundle.read_json(each["encoder"]))
            for each in manifest["parties"]
        }
        shapes = [getattr(each, "own_shape", (0,)) for each in self.encoders.values()]
        if (pixels := sum(map(math.prod, shapes))) > MAX_PIXELS:
            raise BundleError(
                f"images: expected at most {MAX_PIXELS} numbers in a row, got {pixels}; train with "
                "smaller images"
            )
        self.thresholds = {each["name"]: each["full_threshold"] for each in manifest["parties"]}
        outputs = [Output.from_dict(each) for each in manifest["outputs"]]
        self.outputs = {output.key: output for output in outputs}
        self.task = build_task(manifest["task"], manifest["class_factors"])
        self.prior: Floats = np.array(manifest["prior"])
        self.flags = ModelFlags(**manifest["flags"])
        self._numbers = {name: number for number, name in enumerate(self.encoders)}
        self._tables: list[str] = manifest.get("cells", [])
        self._cells = read_cells(bundle.files[CELLS]) if self._tables else None
        names = {each for output in outputs for each in (output.graph, output.completion) if each}
        self._nets = {name: Nets(bundle.files[name], threads) for name in sorted(names)}

    @classmethod
    def load(
        cls, path: str | Path, public_key: Path | None = None, threads: int = 1
    ) -> "Predictor":
        """Read a bundle; see `read_bundle`."""
        return cls(read_bundle(path, public_key), threads)

    def choose(self, mode: str | None = None, party: str | None = None) -> Output:
        """Return the output of a mode and party; by default, the only or collaborative one.

        Raises
        ------
        RequestError
            The bundle has no such mode or party, or the party must be named.
        """
        modes = list(dict.fromkeys(output.mode for output in self.outputs.values()))
        if mode is None:
            joint = party is None and "collaborative" in modes
            mode = "collaborative" if joint else "local"
        if mode not in modes:
            raise RequestError(unknown("mode", mode, modes), "mode")
        if mode == "collaborative":
            if party is not None:
                raise RequestError("mode 'collaborative' has no party; leave it out", "party")
            return self.outputs[mode, ""]
        parties = [each.party for each in self.outputs.values() if each.mode == mode]
        if party is None and len(parties) > 1:
            raise RequestError(
                f"mode {mode!r}: name the predicting party: one of {', '.join(parties)}", "party"
            )
        chosen = parties[0] if party is None else party
        if chosen not in parties:
            raise RequestError(unknown("party", chosen, parties), "party")
        return self.outputs[mode, chosen]

    def predict(
        self,
        rows: Sequence[Any],
        mode: str | None = None,
        party: str | None = None,
        options: Options | None = None,
        on_batch: Callable[[int], None] = lambda done: None,
        on_notes: Callable[[str, EncodedRows], None] = lambda party, rows: None,
    ) -> list[dict[str, Any]]:
        """Predict rows.

        Parameters
        ----------
        rows : sequence of dict
            In mode local, the cells of each row by column. In other modes, the same for each
            party: {"bank": {"age": 35}, "shop": None}. Absent and None are missing.
        mode : {"local", "assisted", "collaborative"}, optional
            Default: collaborative if the bundle has it, else local.
        party : str, optional
            The predicting party, in modes local and assisted.
        options : Options, optional
            What the answers hold besides the prediction.
        on_batch : callable
            Called with the number of rows predicted so far; it may raise to stop.
        on_notes : callable
            Called with the encoded rows of each party.

        Returns
        -------
        list of dict
            prediction, probabilities of classes, mode, parties, completed and notes of each row; on
            request completed_features and importance.

        Raises
        ------
        RequestError
            A row cannot be used; it names the row and the field.
        """
        output = self.choose(mode, party)
        answers: list[dict[str, Any]] = []
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            encoded = self.encode(output, part, start)
            for name, each in zip(output.parties, encoded, strict=True):
                on_notes(name, each)
            answers += self.answer(output, encoded, options)
            on_batch(len(answers))
        return answers

    def encode(self, output: Output, rows: Sequence[Any], first: int = 0) -> list[EncodedRows]:
        """Encode rows for each party of an output."""
        if output.mode == "local":
            return [self.encoders[output.party].encode(rows, first)]
        by_party = self._split(output, rows, first)
        return [self.encoders[name].encode(by_party[name], first) for name in output.parties]

    def answer(
        self, output: Output, encoded: list[EncodedRows], options: Options | None = None
    ) -> list[dict[str, Any]]:
        """Predict encoded rows; see `predict`."""
        options = options or Options()
        report = self.report(output, encoded)
        values = self.values(output, encoded, report)
        answers = self.task.answers(values)
        for number, each in enumerate(answers):
            each["mode"], each["parties"] = report.mode[number], report.parties[number]
            each["completed"] = report.completed[number]
            each["notes"] = self._notes(output, encoded, report, number)
        if options.completed:
            self._add_completed(output, encoded, answers)
        if options.importance:
            for number, column in enumerate(self.task.choose(values)):
                importance = self._importance(output, encoded, number, column)
                answers[number]["importance"] = importance
        return answers

    def report(self, output: Output, encoded: list[EncodedRows]) -> RowReport:
        """Report how encoded rows are predicted."""
        thresholds = [self.thresholds[name] for name in output.parties]
        return report_rows(output, self.flags, [each.observed for each in encoded], thresholds)

    def values(self, output: Output, encoded: list[EncodedRows], report: RowReport) -> Floats:
        """Compute calibrated probabilities (n, C), or numbers (n, 1), of encoded rows."""
        (logits,) = self.run(output.graph, output.parties, encoded, [LOGITS])
        out = logits.astype(np.float64)
        if any(report.alone):
            out[report.alone] /= output.local_temperature
            out[np.logical_not(report.alone)] /= output.temperature
        else:
            out /= output.temperature
        values = self.task.values(out)
        if any(report.prior):
            values[report.prior] = self.prior
        return values

    def run(
        self,
        graph: str,
        parties: Sequence[str],
        encoded: list[EncodedRows],
        names: Sequence[str],
    ) -> list[NDArray[Any]]:
        """Run nets on the encoded rows of some parties, and return the named results."""
        feed: dict[str, NDArray[Any]] = {}
        for name, rows in zip(parties, encoded, strict=True):
            number = self._numbers[name]
            feed[f"p{number}.values"] = rows.values
            feed[f"p{number}.observed"] = rows.observed
            if rows.codes.shape[1]:
                feed[f"p{number}.codes"] = rows.codes
        return self._nets[graph].run(list(names), feed, len(encoded[0].observed))

    def _split(self, output: Output, rows: Sequence[Any], first: int) -> dict[str, list[Any]]:
        """Return each party's part of rows that hold all parties' cells."""
        for number, row in enumerate(rows, first):
            if not isinstance(row, dict):
                raise RequestError(
                    f"row {number}: expected an object with one entry for each party "
                    f"({', '.join(output.parties)}), got {type(row).__name__}",
                    "rows",
                    number,
                )
            for name in row:
                if name not in output.parties:
                    text = unknown("party", name, output.parties)
                    raise RequestError(
                        f"row {number}, {text}; in mode {output.mode!r} each row holds the "
                        "columns by party",
                        name,
                        number,
                    )
        return {name: [row.get(name) for row in rows] for name in output.parties}

    def _notes(
        self, output: Output, encoded: list[EncodedRows], report: RowReport, row: int
    ) -> list[str]:
        notes = [
            f"{name}: {write_notes(each.notes[row])}"
            for name, each in zip(output.parties, encoded, strict=True)
            if each.notes[row]
        ]
        if report.remarks[row]:
            notes.append(report.remarks[row])
        if report.prior[row]:
            notes.append(f"{NOT_OBSERVED}: {self.task.prior_name}")
        return notes

    def _add_completed(
        self, output: Output, encoded: list[EncodedRows], answers: list[dict[str, Any]]
    ) -> None:
        """Add the completed values of missing features, by party."""
        names = [output.party] if output.party else list(output.parties)
        for name in names:
            if not (output.completion if self._has_images(name) else name in self._tables):
                raise RequestError(
                    f"completed: this model completes no features of {name!r}; leave `completed` "
                    "out",
                    "completed",
                )
        for each in answers:
            each["completed_features"] = {}
        for name in names:
            encoder, rows = self.encoders[name], encoded[output.parties.index(name)]
            values, words = self._complete(output, encoded, name)
            for row, each in enumerate(answers):
                decoded = encoder.decode(values[row], words[row])
                seen = dict(zip(encoder.features, rows.observed[row].tolist(), strict=False))
                if isinstance(encoder, ImageRows):
                    seen = dict.fromkeys(encoder.features, bool(rows.observed[row].all()))
                each["completed_features"][name] = {
                    feature: value for feature, value in decoded.items() if not seen[feature]
                }

    def _has_images(self, party: str) -> bool:
        return isinstance(self.encoders[party], ImageRows)

    def _complete(
        self, output: Output, encoded: list[EncodedRows], party: str
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Complete a party's rows: images by the nets, tables by the model of cells."""
        count = len(encoded[0].observed)
        if self._has_images(party):
            names = [f"{COMPLETED}.{self._numbers[party]}"]
            (pixels,) = self.run(output.completion, output.parties, encoded, names)
            return pixels, np.zeros((count, 0), dtype=np.int64)
        assert self._cells is not None
        tables = {
            self._tables.index(name): rows
            for name, rows in zip(output.parties, encoded, strict=True)
            if name in self._tables
        }
        return self._cells.complete(tables, count, self._tables.index(party))

    def _importance(
        self, output: Output, encoded: list[EncodedRows], row: int, column: int
    ) -> dict[str, dict[str, float]]:
        """Return how much each observed feature adds to the prediction.

        That is the decrease of the predicted class's probability, or of the predicted number, if
        the feature is treated as missing.
        """
        places = []
        for i, name in enumerate(output.parties):
            if isinstance(self.encoders[name], ImageRows):
                raise RequestError(
                    f"importance: not available for the images of party {name!r}; leave "
                    "`importance` out",
                    "importance",
                )
            places += [(i, j) for j in np.flatnonzero(encoded[i].observed[row]).tolist()]
        copies = [_repeat(each, row, len(places) + 1) for each in encoded]
        for at, (i, j) in enumerate(places, 1):
            copies[i].observed[at, j] = False
        values = self.values(output, copies, self.report(output, copies))[:, column]
        result: dict[str, dict[str, float]] = {name: {} for name in output.parties}
        for at, (i, j) in enumerate(places, 1):
            name = output.parties[i]
            result[name][self.encoders[name].features[j]] = float(values[0] - values[at])
        return result


def _check_encoders(bundle: Bundle) -> None:
    """Reject more parties, or larger encoders of all parties, than fit into the memory."""
    files = [each["encoder"] for each in bundle.manifest["parties"]]
    if len(files) > MAX_PARTIES or len(set(files)) < len(files):
        raise BundleError(
            f"parties: expected at most {MAX_PARTIES}, each with an encoder of its own, got "
            f"{len(files)} with {len(set(files))} encoders; export the bundle again"
        )
    cells = sum(measure_json(bundle.files[each]).cells for each in files)
    if cells > MAX_CELLS:
        raise BundleError(
            f"encoders: expected at most {MAX_CELLS} values in all, got {cells}; train with fewer "
            "columns or categories"
        )


def _repeat(rows: EncodedRows, row: int, count: int) -> EncodedRows:
    """Repeat one row."""
    notes: list[Notes] = [[]] * count
    at = np.full(count, row)
    return EncodedRows(rows.values[at], rows.codes[at], rows.observed[at], notes)


class Nets:
    """Nets in ONNX Runtime.

    Requests of few rows are the usual ones. Sessions in which the number of rows is fixed, and with
    it all sizes, compute them in less than half of the time; rows are added up to that number.
    """

    def __init__(self, nets: bytes, threads: int) -> None:
        check_self_contained(nets)
        self._nets, self._threads = nets, threads
        self._fixed = [(rows, self._session(rows)) for rows in FIXED_ROWS]
        self._many = self._session(None)

    def run(self, names: list[str], feed: dict[str, NDArray[Any]], rows: int) -> list[NDArray[Any]]:
        """Compute the named results."""
        results: list[NDArray[Any]]
        for size, session in self._fixed:
            if rows == size:
                results = session.run(names, feed)
                return results
            if rows < size:
                padded = {name: _pad(each, size) for name, each in feed.items()}
                return [each[:rows] for each in session.run(names, padded)]
        results = self._many.run(names, feed)
        return results

    def _session(self, rows: int | None) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if rows is not None:
            options.add_free_dimension_override_by_name("rows", rows)
        # The check of external data reads this format.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        return onnxruntime.InferenceSession(
            self._nets, options, providers=["CPUExecutionProvider"], enable_fallback=False
        )


def _pad(rows: NDArray[Any], size: int) -> NDArray[Any]:
    """Append zeros up to a number of rows."""
    padded = np.zeros((size, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    return padded

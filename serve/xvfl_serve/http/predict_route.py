"""`POST /predict`: rows as JSON objects, a CSV or a Parquet file."""

import csv
import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from xvfl_serve.errors import RequestError, unknown
from xvfl_serve.http.batching import Batcher
from xvfl_serve.http.bodies import (
    CSV_TYPE,
    JSON_TYPES,
    PARQUET_TYPES,
    check_rows,
    content_type,
    decode_json,
    read_body,
    read_csv,
    read_parquet,
)
from xvfl_serve.http.json_response import rows_response
from xvfl_serve.http.metrics import Metrics
from xvfl_serve.http.settings import Settings
from xvfl_serve.http.size_limits import Admission, SizeLimits
from xvfl_serve.predictor import Options, Predictor

INLINE_BYTES = 2**16
INLINE_ROWS = 8
"""Larger requests are decoded and computed in a thread, so that the event loop is not blocked."""
P = ParamSpec("P")
T = TypeVar("T")
PLAIN = Options()
MAX_IMPORTANCE_ROWS = 100
FIELDS = ("rows", "mode", "party", "completed", "importance")
PARAMETERS = ("mode", "party", "completed", "importance", "id")
"""Query parameters of uploads."""


@dataclass(frozen=True)
class PredictCall:
    """A parsed request."""

    rows: Sequence[Any]
    mode: str | None = None
    party: str | None = None
    options: Options = PLAIN
    ids: Sequence[Any] | None = None


@dataclass(frozen=True)
class Computer:
    """Decodes and predicts the rows of requests within the limits."""

    settings: Settings
    metrics: Metrics
    batcher: Batcher
    admission: Admission

    def check(self, call: PredictCall, limits: SizeLimits) -> int:
        """Check the number of rows; return the cells of their answers."""
        check_rows(len(call.rows), self.settings.max_rows)
        if call.options.importance:
            check_rows(len(call.rows), min(self.settings.max_rows, MAX_IMPORTANCE_ROWS))
        return limits.check_answers(len(call.rows), call.options.completed)

    async def compute(self, predictor: Predictor, call: PredictCall) -> list[dict[str, Any]]:
        """Predict: few rows together with those of other requests, many in a thread."""
        if 0 < len(call.rows) <= INLINE_ROWS and call.options == PLAIN:
            output = predictor.choose(call.mode, call.party)
            encoded = predictor.encode(output, call.rows)
            for name, rows in zip(output.parties, encoded, strict=True):
                self.metrics.add_rows(name, predictor.encoders[name], rows)
            answers = await self.batcher.answer(predictor, output, encoded)
        else:
            answers = await run_in_threadpool(self._predict_many, predictor, call)
        self.metrics.add_answers([each["mode"] for each in answers])
        return answers

    def _predict_many(self, predictor: Predictor, call: PredictCall) -> list[dict[str, Any]]:
        seconds = self.settings.max_seconds
        deadline = time.monotonic() + seconds

        def check_time(done: int) -> None:
            if time.monotonic() > deadline:
                raise RequestError(
                    f"{done} of {len(call.rows)} rows were predicted in {seconds:g} s, the limit; "
                    "send fewer rows",
                    "rows",
                    status=413,
                )

        return predictor.predict(
            call.rows,
            call.mode,
            call.party,
            call.options,
            check_time,
            lambda party, rows: self.metrics.add_rows(party, predictor.encoders[party], rows),
        )


async def predict(
    request: Request, predictor: Predictor, limits: SizeLimits, computer: Computer
) -> Response:
    """Answer `POST /predict`."""
    admission, settings, kind = computer.admission, computer.settings, content_type(request)
    with admission.count_bytes() as on_part:
        body = await read_body(request, settings.max_bytes, settings.max_seconds, on_part)
        cells, decode = await _measure(kind, body, limits)
        size = len(body) if kind in JSON_TYPES else math.inf
        async with admission.rows.hold(cells):
            call = await run_large(size, decode, request.query_params, predictor)
            async with admission.answers.hold(computer.check(call, limits)):
                answers = await computer.compute(predictor, call)
                size = len(answers) * INLINE_BYTES // INLINE_ROWS
                return await run_large(size, _respond, request, call, answers, predictor)


async def _measure(
    kind: str, body: bytes, limits: SizeLimits
) -> tuple[int, Callable[[Mapping[str, str], Predictor], PredictCall]]:
    """Return the cells of a body, at most, and the function that decodes it."""
    if kind in JSON_TYPES:
        cells = await run_large(len(body), limits.check_json, body)
        return cells, lambda parameters, _: _json_call(decode_json(body), parameters)
    if kind == CSV_TYPE:
        return min(len(body), limits.cells), lambda parameters, predictor: _upload_call(
            parameters, read_csv(body, limits), predictor
        )
    if kind in PARQUET_TYPES:
        # Its size is known only after it is decoded.
        return limits.max_cells, lambda parameters, predictor: _upload_call(
            parameters, read_parquet(body, limits), predictor
        )
    valid = (JSON_TYPES[0], CSV_TYPE, PARQUET_TYPES[0])
    raise RequestError(unknown("content type", kind, valid), "content-type", status=415)


def _respond(
    request: Request,
    call: PredictCall,
    answers: Sequence[Mapping[str, Any]],
    predictor: Predictor,
) -> Response:
    if call.ids is not None:
        answers = [{"id": i, **each} for i, each in zip(call.ids, answers, strict=True)]
    if request.headers.get("accept", "").startswith(CSV_TYPE):
        return Response(_write_csv(answers, predictor), media_type=CSV_TYPE)
    return rows_response({"bundle": predictor.bundle.digest}, "predictions", answers)


async def run_large(size: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function, in a thread if `size` exceeds `INLINE_BYTES`.

    The thread keeps the event loop free for other requests.
    """
    if size <= INLINE_BYTES:
        return function(*args, **kwargs)
    return await run_in_threadpool(function, *args, **kwargs)


def _json_call(data: Mapping[str, Any], parameters: Mapping[str, str]) -> PredictCall:
    for name in parameters:
        raise RequestError(
            f"query parameter {name[:100]!r}: expected none beside JSON; use fields of the object",
            name,
        )
    for name in data:
        if name not in FIELDS:
            raise RequestError(unknown("field", name, FIELDS), name)
    rows = data.get("rows")
    if not isinstance(rows, list):
        got = "nothing" if rows is None else type(rows).__name__
        raise RequestError(f"rows: expected a list of objects, got {got}", "rows")
    options = Options(_flag(data, "completed"), _flag(data, "importance"))
    return PredictCall(rows, optional_text(data, "mode"), optional_text(data, "party"), options)


def _upload_call(
    parameters: Mapping[str, str], rows: list[dict[str, Any]], predictor: Predictor
) -> PredictCall:
    for name in parameters:
        if name not in PARAMETERS:
            raise RequestError(unknown("query parameter", name, PARAMETERS), name)
    flags = {}
    for name in ("completed", "importance"):
        text = parameters.get(name, "false")
        if text not in ("true", "false"):
            raise RequestError(f"{name}: expected true or false, got {text[:50]!r}", name)
        flags[name] = text == "true"
    ids, column = None, parameters.get("id")
    if column is not None:
        if rows and column not in rows[0]:
            raise RequestError(unknown("id column", column, rows[0]), "id")
        ids = [str(row.pop(column)) for row in rows]
    output = predictor.choose(parameters.get("mode"), parameters.get("party"))
    split = rows if output.mode == "local" else [_by_party(row, output.parties) for row in rows]
    return PredictCall(split, output.mode, output.party or None, Options(**flags), ids)


def _by_party(row: Mapping[str, Any], parties: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Split columns that are named PARTY.COLUMN."""
    cells: dict[str, dict[str, Any]] = {name: {} for name in parties}
    for name, value in row.items():
        party = next((each for each in parties if str(name).startswith(f"{each}.")), None)
        if party is None:
            raise RequestError(
                f"column {name!r}: expected PARTY.COLUMN with one of the parties "
                f"{', '.join(parties)}",
                str(name),
            )
        cells[party][str(name)[len(party) + 1 :]] = value
    return cells


def optional_text(data: Mapping[str, Any], name: str) -> str | None:
    """Return a text or None."""
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{name}: expected a text, got {type(value).__name__}", name)
    return value


def _flag(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"{name}: expected true or false, got {type(value).__name__}", name)
    return value


def _write_csv(answers: Sequence[Mapping[str, Any]], predictor: Predictor) -> str:
    """Write answers as `xvfl predict` does."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    ids = bool(answers) and "id" in answers[0]
    classes = [f"proba_{label}" for label in predictor.task.classes]
    names = ["prediction", *classes, "mode", "parties", "completed", "notes"]
    writer.writerow(["id", *names] if ids else names)
    for each in answers:
        cells = [each["prediction"], *each.get("probabilities", {}).values(), each["mode"]]
        cells += ["+".join(each["parties"]), each["completed"], "; ".join(each["notes"])]
        writer.writerow([each["id"], *cells] if ids else cells)
    return file.getvalue()

"""The HTTP endpoint of prediction by the federation: `POST /predict` with ids.

It shares tokens, limits, errors, JSON and the documentation page with the server of a bundle.
"""

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from xvfl_serve.errors import RequestError, UnavailableError, unknown
from xvfl_serve.http.access import Access
from xvfl_serve.http.bodies import JSON_TYPES, check_rows, content_type, parse_json, read_body
from xvfl_serve.http.connections import port_limits
from xvfl_serve.http.docs_page import docs_page
from xvfl_serve.http.id_openapi import MIN_DEADLINE_S, describe_endpoint
from xvfl_serve.http.json_response import error_response, json_response
from xvfl_serve.http.metrics import CONTENT_TYPE, Metrics
from xvfl_serve.http.micro_batches import Answers
from xvfl_serve.http.predict_route import run_large
from xvfl_serve.http.routes import PortRoute, application
from xvfl_serve.http.server import HttpServer, listen
from xvfl_serve.http.server_tls import ServerTls
from xvfl_serve.http.size_limits import Admission, SizeLimits
from xvfl_serve.row_report import REFUSED_MODE

LogFunction = Callable[[Mapping[str, Any]], None]
"""Log an event: a mapping with the key `event` and details."""
FIELDS = ("ids", "mode", "deadline", "unknown")
UNKNOWN = ("error", "prior")
"""What to do with ids that nobody holds: reject the request, or answer with the prior."""
ANYONE = "local"
"""Caller of an endpoint without tokens, which only this machine can reach."""
BODY_BYTES, ID_BYTES = 2**16, 256
"""Bytes of the largest body: so many, and so many for each id."""
BODY_S = 30.0
"""Seconds to receive a body."""


@dataclass(frozen=True)
class PredictionService:
    """What an endpoint offers."""

    mode: str
    """The mode in which it predicts."""
    find_row: Callable[[str], int]
    """Return the row of an id; raise `RequestError` if it cannot be predicted."""
    prior: Callable[[str], dict[str, Any]]
    """Answer a row of which nothing is known, with a note."""
    submit: Callable[[Sequence[int], str, float], "Future[Answers]"]
    """Predict rows for a caller within some seconds."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every response; callers see them."""
    check_ready: Callable[[], None] = lambda: None
    """Raise `RequestError` if no request can be answered at present."""
    failures: tuple[type[Exception], ...] = ()
    """Exceptions of predictions that failed; others are internal errors."""


@dataclass(frozen=True)
class IdSettings:
    """Address, callers and limits of an endpoint."""

    access: Access
    port: int
    deadline: float
    """Longest time to answer a request, in seconds."""
    max_rows: int
    tls: ServerTls | None = None
    version: str = ""
    """Version of the software, for the description."""


class IdEndpoint:
    """Serves `POST /predict` in a thread until closed; raises `OSError` if it cannot listen."""

    def __init__(self, settings: IdSettings, service: PredictionService, log: LogFunction) -> None:
        self._service, self._deadline, self._log = service, settings.deadline, log
        self._max_rows = settings.max_rows
        self._max_bytes = BODY_BYTES + ID_BYTES * settings.max_rows
        self._limits = SizeLimits.of_ids(self._max_rows, self._max_bytes)
        self._admission = Admission(self._max_bytes, self._limits.cells, BODY_S)
        self.metrics = Metrics()
        self._openapi = describe_endpoint(
            service.mode,
            settings.deadline,
            settings.max_rows,
            bool(settings.access.callers()),
            settings.version,
        )
        listener = listen(settings.access.host, settings.port)
        app = self._application(settings.access)
        seconds = settings.deadline + 1
        self.server = HttpServer(app, listener, port_limits(), settings.tls, seconds).start("http")
        self.port = self.server.port

    def close(self) -> None:
        """Finish the requests in progress and stop."""
        self.server.close()

    def _application(self, access: Access) -> ASGIApp:
        routes = [
            PortRoute("/predict", self._predict, "predict", ["POST"]),
            PortRoute("/", self._docs, "look"),
            PortRoute("/docs", self._docs, "look"),
            PortRoute("/openapi.json", self._openapi_json, "look"),
            PortRoute("/metrics", self._metrics_text, "look"),
            PortRoute("/v2/health/live", self._live, None),
            PortRoute("/v2/health/ready", self._ready, None),
        ]
        failures = dict.fromkeys(self._service.failures, self._on_failure)
        return application(routes, access, self.metrics.add_request, self._log, failures)

    async def _docs(self, request: Request) -> Response:
        return HTMLResponse(docs_page(self._openapi, str(request.base_url)))

    async def _openapi_json(self, request: Request) -> Response:
        return json_response(self._openapi)

    async def _live(self, request: Request) -> Response:
        return Response(status_code=200)

    async def _ready(self, request: Request) -> Response:
        try:
            await asyncio.to_thread(self._service.check_ready)
        except RequestError:
            seconds = UnavailableError.retry_after
            # Anybody may ask this, so the reason stays in the log and in answers to callers.
            return Response(status_code=503, headers={"Retry-After": str(seconds)})
        return Response(status_code=200)

    async def _metrics_text(self, request: Request) -> Response:
        about = {"mode": self._service.mode, **self._service.about}
        info = {name: str(value) for name, value in about.items()}
        ready = (await self._ready(request)).status_code == 200
        return Response(self.metrics.text(info, ready), media_type=CONTENT_TYPE)

    async def _predict(self, request: Request) -> Response:
        started = time.monotonic()
        kind = content_type(request)
        if kind not in JSON_TYPES:
            text = unknown("content type", kind, JSON_TYPES[:1])
            raise RequestError(text, "content-type", status=415)
        with self._admission.count_bytes() as on_part:
            body = await read_body(request, self._max_bytes, BODY_S, on_part)
            data = await run_large(len(body), parse_json, body, self._limits, '{"ids": [...]}')
            return await self._answer(data, getattr(request.state, "caller", ANYONE), started)

    async def _answer(self, data: Mapping[str, Any], caller: str, started: float) -> Response:
        ids, seconds, unknown_as_prior = self._parse(data)
        await asyncio.to_thread(self._service.check_ready)
        places, rows, answers = list[int](), list[int](), list[dict[str, Any]]()
        for place, each in enumerate(ids):
            try:
                rows.append(self._service.find_row(each))
                places.append(place)
                answers.append({})
            except RequestError as error:
                if error.status != 404:
                    raise
                error.row = place
                if not unknown_as_prior:
                    raise
                answers.append(self._service.prior(error.message))
        if rows:
            future = self._service.submit(rows, caller, seconds)
            received = await self._received(future)
            for place, answer in zip(places, received, strict=True):
                answers[place] = answer
        self.metrics.add_answers([each["mode"] for each in answers])
        predictions = [{"id": i, **each} for i, each in zip(ids, answers, strict=True)]
        took = round(time.monotonic() - started, 6)
        body = {**self._service.about, "seconds": took, "predictions": predictions}
        if all(each["mode"] == REFUSED_MODE for each in answers):
            return _all_refused(body)
        return json_response(body)

    async def _received(self, future: "Future[Answers]") -> Answers:
        expected: tuple[type[Exception], ...] = (RequestError, *self._service.failures)
        try:
            return await asyncio.wrap_future(future)
        except expected:
            raise
        except Exception as error:
            self._log({"event": "internal_error", "traceback": traceback.format_exc()})
            text = f"internal error {type(error).__name__}; see the log of this process"
            raise RequestError(text, status=500) from error

    def _parse(self, data: Mapping[str, Any]) -> tuple[list[str], float, bool]:
        """Return the ids, the seconds, and whether unknown ids are answered with the prior."""
        for name in data:
            if name not in FIELDS:
                raise RequestError(unknown("field", name, FIELDS), name)
        ids, mode = data.get("ids"), data.get("mode", self._service.mode)
        if not isinstance(ids, list) or not ids:
            got = "an empty list" if isinstance(ids, list) else type(ids).__name__
            raise RequestError(f"ids: expected a list of one or more ids, got {got}", "ids")
        for place, each in enumerate(ids):
            if not isinstance(each, str):
                name = type(each).__name__
                raise RequestError(f"ids: expected texts, got {name}", "ids", place)
        check_rows(len(ids), self._max_rows, "ids")
        if mode != self._service.mode:
            raise RequestError(
                f"mode: this endpoint predicts in mode {self._service.mode!r}, got "
                f"{str(mode)[:100]!r}",
                "mode",
            )
        seconds = data.get("deadline", self._deadline)
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not MIN_DEADLINE_S <= seconds <= self._deadline:
            raise RequestError(
                f"deadline: expected {MIN_DEADLINE_S} to {self._deadline:g} seconds, got "
                f"{str(seconds)[:100]}",
                "deadline",
            )
        policy = data.get("unknown", UNKNOWN[0])
        if policy not in UNKNOWN:
            raise RequestError(unknown("value", str(policy), UNKNOWN), "unknown")
        return ids, float(seconds), policy == "prior"

    async def _on_failure(self, request: Request, error: Exception) -> Response:
        self._log({"event": "prediction_failed", "reason": str(error)})
        text = f"the prediction failed ({type(error).__name__}); see the log of this process"
        return error_response(RequestError(text, status=503))


def _all_refused(body: dict[str, Any]) -> Response:
    """Answer a request whose rows are all refused by a budget; budgets refill at midnight UTC."""
    first, now = body["predictions"][0], datetime.now(UTC)
    midnight = datetime.combine(now.date() + timedelta(1), datetime.min.time(), UTC)
    text = f"ids: {first['id']!r} is refused: {'; '.join(first['notes'])}"
    error = {"error": text, "field": "ids", "row": 0}
    headers = {"Retry-After": str(int((midnight - now).total_seconds()) + 1)}
    return json_response({**error, **body}, 429, headers)

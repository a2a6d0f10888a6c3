"""The server's application: routes, errors and metrics."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from xvfl_serve.errors import RequestError, unknown
from xvfl_serve.http import infer_v2
from xvfl_serve.http.batching import Batcher
from xvfl_serve.http.bodies import decode_json, read_body
from xvfl_serve.http.docs_page import docs_page
from xvfl_serve.http.json_response import json_response
from xvfl_serve.http.metrics import CONTENT_TYPE, Metrics
from xvfl_serve.http.model_slot import ModelSlot
from xvfl_serve.http.openapi import openapi
from xvfl_serve.http.predict_route import Computer, predict, run_large
from xvfl_serve.http.routes import PortRoute, application
from xvfl_serve.http.settings import Settings
from xvfl_serve.http.size_limits import Admission

log = logging.getLogger("xvfl_serve")


def log_event(event: Mapping[str, Any]) -> None:
    """Log an event about a caller or a refused request."""
    details = [f"{key}={each}" for key, each in event.items() if key != "event"]
    log.info("%s", " ".join((str(event["event"]), *details)))


class Service:
    """The endpoints of a server."""

    def __init__(self, settings: Settings, version: str) -> None:
        self.settings, self.version, self.metrics = settings, version, Metrics()
        self.slot = ModelSlot(settings, self.metrics)
        admission = Admission(settings.max_bytes, settings.max_cells, settings.max_seconds)
        self.computer = Computer(settings, self.metrics, Batcher(), admission)

    def application(self) -> ASGIApp:
        """Return the ASGI application."""
        name = "/v2/models/{model}"
        routes = [
            PortRoute("/predict", self.predict, "predict", ["POST"]),
            PortRoute("/", self.docs, "look"),
            PortRoute("/docs", self.docs, "look"),
            PortRoute("/openapi.json", self.openapi, "look"),
            PortRoute("/card", self.card, "look"),
            PortRoute("/metrics", self.metrics_text, "look"),
            PortRoute("/v2", self.server_metadata, "predict"),
            PortRoute("/v2/health/live", self.live, None),
            PortRoute("/v2/health/ready", self.ready, None),
            PortRoute(name, self.model_metadata, "predict"),
            PortRoute(f"{name}/ready", self.model_ready, "predict"),
            PortRoute(f"{name}/infer", self.infer, "predict", ["POST"]),
            PortRoute(f"{name}/versions/{{version}}", self.model_metadata, "predict"),
            PortRoute(f"{name}/versions/{{version}}/ready", self.model_ready, "predict"),
            PortRoute(f"{name}/versions/{{version}}/infer", self.infer, "predict", ["POST"]),
        ]
        count = self.metrics.add_request
        return application(routes, self.settings.access, count, log_event, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        watcher = asyncio.create_task(self.slot.watch())
        yield
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher

    async def live(self, request: Request) -> Response:
        """Answer that the server is alive."""
        return Response(status_code=200)

    async def ready(self, request: Request) -> Response:
        """Answer whether the server predicts: it starts with a bundle, which may be revoked."""
        return Response(status_code=503 if self.slot.revoked else 200)

    async def predict(self, request: Request) -> Response:
        """Predict rows."""
        return await predict(request, self.slot.predictor(), self.slot.limits, self.computer)

    async def infer(self, request: Request) -> Response:
        """Predict tensors by the Open Inference Protocol."""
        predictor, limits = self.slot.predictor(), self.slot.limits
        self._check_model(request)
        admission, settings = self.computer.admission, self.settings
        with admission.count_bytes() as on_part:
            body = await read_body(request, settings.max_bytes, settings.max_seconds, on_part)
            size = len(body)
            async with admission.rows.hold(await run_large(size, limits.check_json, body)):
                data = await run_large(size, decode_json, body)
                call, wanted = await run_in_threadpool(
                    infer_v2.parse_infer, data, predictor, limits
                )
                async with admission.answers.hold(self.computer.check(call, limits)):
                    answers = await self.computer.compute(predictor, call)
                    return await run_large(
                        size,
                        infer_v2.infer_response,
                        settings.name,
                        data,
                        answers,
                        wanted,
                        predictor,
                    )

    async def server_metadata(self, request: Request) -> Response:
        """Describe the server."""
        return json_response(infer_v2.server_metadata(self.version))

    async def model_metadata(self, request: Request) -> Response:
        """Describe the model."""
        self._check_model(request)
        return json_response(infer_v2.model_metadata(self.settings.name, self.slot.current))

    async def model_ready(self, request: Request) -> Response:
        """Answer whether the model is ready."""
        self._check_model(request)
        return await self.ready(request)

    async def docs(self, request: Request) -> Response:
        """Show the documentation of this server."""
        card = self.slot.current.bundle.card
        return HTMLResponse(docs_page(self._openapi(), str(request.base_url), card))

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI description."""
        return json_response(self._openapi())

    async def card(self, request: Request) -> Response:
        """Return the model card."""
        return PlainTextResponse(self.slot.current.bundle.card, media_type="text/markdown")

    async def metrics_text(self, request: Request) -> Response:
        """Return the counters."""
        bundle = self.slot.current.bundle
        info = {"digest": bundle.digest, "version": str(bundle.manifest.get("version", ""))}
        return Response(self.metrics.text(info), media_type=CONTENT_TYPE)

    def _openapi(self) -> dict[str, Any]:
        return openapi(self.slot.current, self.settings, self.version)

    def _check_model(self, request: Request) -> None:
        model, version = request.path_params["model"], request.path_params.get("version")
        if model != self.settings.name:
            raise RequestError(unknown("model", model, [self.settings.name]), "model", status=404)
        loaded = self.slot.current.bundle.digest[:12]
        if version not in (None, loaded):
            raise RequestError(unknown("version", str(version), [loaded]), "version", status=404)

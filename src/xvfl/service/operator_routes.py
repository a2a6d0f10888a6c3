"""What an operator may do over HTTP at the status address: release heads, approve uploads.

The commands `xvfl release` and `xvfl approve` do the same. At a port without callers nobody has
the rights. The caller is in the log and in the trail.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from xvfl.errors import XVFLError
from xvfl.model.dashboard.assets import json_reply
from xvfl.model.run_dir import RunDir
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig
from xvfl.service.party_approvals import decide
from xvfl.service.release_delivery import sign_releases
from xvfl.system.event_log import LogFunction
from xvfl_serve.errors import RequestError, unknown
from xvfl_serve.http.bodies import decode_json, read_body
from xvfl_serve.http.callers import Right
from xvfl_serve.http.routes import PortRoute

MAX_BYTES, MAX_SECONDS = 2**14, 10.0
"""Limits of a body."""
Act = Callable[[Mapping[str, Any], str], dict[str, Any]]
"""Do what the fields of a request say, for a caller; return the answer."""


def operator_routes(
    config: CoordinatorConfig | PartyProcessConfig, log: LogFunction
) -> list[PortRoute]:
    """Return `POST /release` of a coordinator, or `POST /approve` of a party."""
    folder = RunDir(config.state_dir)

    def release(data: Mapping[str, Any], by: str) -> dict[str, Any]:
        assert isinstance(config, CoordinatorConfig)
        parties, reason = data.get("parties", list(config.release_to)), data.get("revoke")
        valid = isinstance(parties, list) and all(isinstance(each, str) for each in parties)
        if not valid or not parties:
            raise RequestError("parties: expected a list of one or more names", "parties")
        if not isinstance(reason, str | None):
            raise RequestError("revoke: expected the reason as a text, or null", "revoke")
        store = sign_releases(config, list(dict.fromkeys(parties)), reason)
        log({"event": "release_signed", "parties": parties, "revoked": reason, "by": by})
        records = store.records()
        return {"releases": {name: asdict(records[name]) for name in parties}}

    def approve(data: Mapping[str, Any], by: str) -> dict[str, Any]:
        number, reject = data.get("number"), data.get("reject", False)
        if type(number) is not int or not isinstance(reject, bool):
            raise RequestError("expected `number`, that of a request, and `reject`, true or false")
        return asdict(decide(folder, log, number, by, not reject))

    if isinstance(config, CoordinatorConfig):
        return [_route("/release", release, "release", ("parties", "revoke"))]
    return [_route("/approve", approve, "approve", ("number", "reject"))]


def _route(path: str, act: Act, right: Right, fields: tuple[str, ...]) -> PortRoute:
    async def respond(request: Request) -> Response:
        body = await read_body(request, MAX_BYTES, MAX_SECONDS, lambda size: None)
        data = decode_json(body, "{}")
        for name in data:
            if name not in fields:
                raise RequestError(unknown("field", name, fields), name)
        try:
            answer = await run_in_threadpool(act, data, f"{request.state.caller} over HTTP")
        except XVFLError as error:
            raise RequestError(str(error), status=409) from error
        return json_reply(answer)

    return PortRoute(path, respond, right, ["POST"])

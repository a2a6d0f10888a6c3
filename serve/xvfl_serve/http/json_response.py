"""Responses in JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from xvfl_serve.errors import RequestError

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def json_response(
    data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON object."""
    return Response(_encode(data), status, headers, "application/json")


def rows_response(
    fields: Mapping[str, str], name: str, rows: Sequence[Mapping[str, Any]]
) -> Response:
    """Return a JSON object with a list of rows, encoded row by row so that other threads run."""
    head = _encode(fields)[:-1]
    text = f"{head},{_encode(name)}:[{','.join(map(_encode, rows))}]}}"
    return Response(text, media_type="application/json")


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error: its message, and the field and row at fault where there is one.

    The key `error` is that of the Open Inference Protocol.
    """
    data: dict[str, Any] = {"error": error.message}
    if error.field:
        data["field"] = error.field
    if error.row is not None:
        data["row"] = error.row
    if error.status == 503:
        headers = {"Retry-After": str(error.retry_after), **(headers or {})}
    return json_response(data, error.status, headers)

"""Responses in JSON."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from xvfl_serve.errors import RequestError

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def json_response(
    data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON object."""
    return Response(_encode(data), status, headers, "application/json")


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error: its message, and the field and row at fault where there is one.

    The key `error` is that of the Open Inference Protocol.
    """
    data: dict[str, Any] = {"error": error.message}
    if error.field:
        data["field"] = error.field
    if error.row is not None:
        data["row"] = error.row
    return json_response(data, error.status, headers)

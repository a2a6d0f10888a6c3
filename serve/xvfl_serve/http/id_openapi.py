"""The OpenAPI description of the HTTP endpoint of prediction by the federation."""

from xvfl_serve.http import openapi
from xvfl_serve.http.openapi import ERROR, TEXT, Schema, describe, get_operation

COMMON = ("400", "401", "403", "408", "415", "421", "422")
"""Errors that every port has."""
ERRORS = {status: openapi.ERRORS[status] for status in COMMON} | {
    "404": "An id that nobody holds, or that may not be predicted.",
    "409": "No head is released to this party.",
    "413": "Too many ids or bytes.",
    "429": "All rows are refused: the parties that could answer have used up a budget.",
    "503": "Fewer than `min_parties` are available, the request waited too long for others, or the "
    "prediction failed; try again.",
}
MIN_DEADLINE_S = 0.01
"""Shortest time that a request may demand."""


def describe_endpoint(
    mode: str, deadline: float, max_rows: int, tokens: bool, version: str
) -> Schema:
    """Describe an endpoint that predicts in a mode; see `IdSettings`."""
    request = {"application/json": {"schema": {"$ref": "#/components/schemas/PredictRequest"}}}
    answers = {"application/json": {"schema": {"$ref": "#/components/schemas/Answers"}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    predict = {
        "summary": "Predict rows by their ids.",
        "requestBody": {"required": True, "content": request},
        "responses": {"200": {"description": "One answer per id.", "content": answers}}
        | {status: {"description": ERRORS[status], "content": error} for status in sorted(ERRORS)},
    }
    paths = {
        "/predict": {"post": predict},
        "/v2/health/live": {"get": get_operation("Tell whether the endpoint is alive.", None)},
        "/v2/health/ready": {"get": _ready()},
        "/metrics": {"get": get_operation("Return counters for Prometheus.", "text/plain")},
        "/openapi.json": {"get": get_operation("Return this description.")},
    }
    request_schema = _request(mode, deadline, max_rows)
    schemas = {"Answers": _answers(), "Error": ERROR, "PredictRequest": request_schema}
    text = f"Rows are predicted in mode {mode} by the parties that hold them and answer in time."
    return describe("Predictions of the federation", version, text, paths, schemas, tokens)


def _ready() -> Schema:
    operation = get_operation("Tell whether requests can be answered.", None)
    operation["responses"]["503"] = {"description": "Too few parties, or no released head."}
    return operation


def _request(mode: str, deadline: float, max_rows: int) -> Schema:
    return {
        "type": "object",
        "required": ["ids"],
        "additionalProperties": False,
        "properties": {
            "ids": {"type": "array", "minItems": 1, "maxItems": max_rows, "items": TEXT},
            "mode": {"enum": [mode]},
            "deadline": {
                "type": "number",
                "minimum": MIN_DEADLINE_S,
                "maximum": deadline,
                "description": "Seconds; parties that have not answered by then are left out.",
            },
            "unknown": {
                "enum": ["error", "prior"],
                "description": "Reject ids that nobody holds, or answer them with the prior.",
            },
        },
        "example": {"ids": ["c0412"]},
    }


def _answers() -> Schema:
    share = {"type": "number", "minimum": 0, "maximum": 1}
    texts = {"type": "array", "items": TEXT}
    answer = {
        "type": "object",
        "required": [
            *("id", "prediction", "mode", "parties", "unreachable", "refused"),
            *("completed", "notes"),
        ],
        "properties": {
            "id": TEXT,
            "prediction": {
                "type": ["string", "number", "boolean", "null"],
                "description": "null in mode refused.",
            },
            "probabilities": {"type": "object", "additionalProperties": share},
            "mode": {"enum": ["local", "assisted", "collaborative", "prior", "refused"]},
            "parties": texts,
            "unreachable": {
                "type": "object",
                "additionalProperties": TEXT,
                "description": "Parties that did not answer, with the reason.",
            },
            "refused": {**texts, "description": "Parties that have used up a budget for the row."},
            "completed": {**share, "description": "Share of completed features."},
            "notes": texts,
            "model": {
                "type": "object",
                "description": "At the coordinator: number and digest of the head that predicted "
                "the row, and the version of each party's encoder.",
                "required": ["head", "digest", "encoders"],
                "properties": {
                    "head": {"type": "integer", "minimum": 0},
                    "digest": TEXT,
                    "encoders": {"type": "object", "additionalProperties": TEXT},
                },
            },
        },
    }
    return {
        "type": "object",
        "required": ["seconds", "predictions"],
        "properties": {
            "party": TEXT,
            "seconds": {"type": "number", "minimum": 0},
            "predictions": {"type": "array", "items": answer},
        },
    }

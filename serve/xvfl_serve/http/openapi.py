"""The OpenAPI description of a server, with the columns of its bundle."""

from typing import Any

from xvfl_serve.encoding.encoders import IMAGE, Encoder, ImageRows
from xvfl_serve.http.bodies import CSV_TYPE, PARQUET_TYPES
from xvfl_serve.http.infer_v2 import DATATYPES
from xvfl_serve.http.settings import Settings
from xvfl_serve.predictor import Predictor
from xvfl_serve.row_report import Output

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": TEXT, "field": TEXT, "row": {"type": "integer"}},
}
ERRORS = {
    "400": "The body cannot be read.",
    "401": "No or wrong token.",
    "403": "The caller lacks the right; or a cross-site request from a browser.",
    "408": "The body arrived too slowly.",
    "410": "The head in the bundle is revoked.",
    "413": "Too many rows, values or bytes, or too long to compute.",
    "415": "Unknown content type.",
    "421": "Without tokens: the host name is not allowed.",
    "422": "A field is wrong; the answer names it.",
    "503": "The server is busy with large requests.",
}


def openapi(predictor: Predictor, settings: Settings, version: str) -> Schema:
    """Describe the endpoints and the columns."""
    schemas = {
        "Answers": _answers(predictor),
        "Error": ERROR,
        "PredictRequest": _predict_request(predictor, settings),
        "InferRequest": _infer_request(),
    }
    text, tokens = "Absent and null fields are missing values.", bool(settings.access.callers())
    paths = _paths(predictor, settings.name)
    return describe(f"Predictions of {settings.name}", version, text, paths, schemas, tokens)


def describe(
    title: str, version: str, text: str, paths: Schema, schemas: Schema, tokens: bool
) -> Schema:
    """Describe a port; with `tokens`, requests need a bearer token."""
    description: Schema = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": text},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if tokens:
        schemes = {"token": {"type": "http", "scheme": "bearer"}}
        description["components"]["securitySchemes"] = schemes
        description["security"] = [{"token": []}]
    return description


def example_row(encoder: Encoder) -> Schema:
    """Return a row with an observed and a missing field."""
    if isinstance(encoder, ImageRows):
        return {IMAGE: None}
    row: Schema = {}
    for column in encoder.columns[:3]:
        empty = (0.5,) + (0.0,) * (column.width - 1)
        value = column.decode_cell(0 if column.kind == "hashed" else empty)  # type: ignore[arg-type]
        row[column.name] = round(value, 4) if isinstance(value, float) else value
    if len(row) > 1:
        row[next(reversed(row))] = None
    return row


def _paths(predictor: Predictor, name: str) -> Schema:
    parameters = [
        {"name": each, "in": "query", "schema": schema, "description": text}
        for each, schema, text in (
            ("mode", TEXT, "Mode of an uploaded table."),
            ("party", TEXT, "Predicting party of an uploaded table."),
            ("id", TEXT, "Column of an uploaded table that is returned with each answer."),
            ("completed", {"enum": ["true", "false"]}, "Return completed features."),
            ("importance", {"enum": ["true", "false"]}, "Return the importance of features."),
        )
    ]
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = {
        "application/json": {"schema": {"$ref": "#/components/schemas/PredictRequest"}},
        CSV_TYPE: {"schema": TEXT},
        PARQUET_TYPES[0]: binary,
    }
    answers = {"application/json": {"schema": {"$ref": "#/components/schemas/Answers"}}}
    answers[CSV_TYPE] = {"schema": TEXT}
    infer = {"application/json": {"schema": {"$ref": "#/components/schemas/InferRequest"}}}
    model = f"/v2/models/{name}"
    return {
        "/predict": {
            "post": {
                "summary": "Predict rows.",
                "parameters": parameters,
                "requestBody": {"required": True, "content": content},
                "responses": {"200": {"description": "One answer per row.", "content": answers}}
                | _errors(),
            }
        },
        "/v2": {"get": get_operation("Describe the server (Open Inference Protocol).")},
        "/v2/health/live": {"get": get_operation("Tell whether the server is alive.", None)},
        "/v2/health/ready": {"get": _ready("server")},
        model: {"get": get_operation("Describe the model's tensors.")},
        f"{model}/ready": {"get": _ready("model")},
        f"{model}/infer": {
            "post": {
                "summary": "Predict tensors (Open Inference Protocol).",
                "requestBody": {"required": True, "content": infer},
                "responses": {"200": _ok("application/json")} | _errors(),
            }
        },
        "/card": {"get": get_operation("Return the model card.", "text/markdown")},
        "/metrics": {"get": get_operation("Return counters for Prometheus.", "text/plain")},
        "/openapi.json": {"get": get_operation("Return this description.")},
    }


def get_operation(summary: str, kind: str | None = "application/json") -> Schema:
    """Describe a GET with a content type, or without a body."""
    responses = {"200": _ok(kind)} | {each: _error(each) for each in ("401", "403", "421")}
    return {"summary": summary, "responses": responses}


def _ready(what: str) -> Schema:
    operation = get_operation(f"Tell whether the {what} is ready.", None)
    operation["responses"]["503"] = {"description": ERRORS["410"]}
    return operation


def _ok(kind: str | None) -> Schema:
    schema = {"type": "object"} if kind == "application/json" else TEXT
    content = {} if kind is None else {"content": {kind: {"schema": schema}}}
    return {"description": "The answer.", **content}


def _errors() -> Schema:
    return {status: _error(status) for status in ERRORS}


def _error(status: str) -> Schema:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": ERRORS[status], "content": content}


def _predict_request(predictor: Predictor, settings: Settings) -> Schema:
    outputs = list(predictor.outputs.values())
    rows = _unique([_row(predictor, output) for output in outputs])
    parties = _unique([output.party for output in outputs if output.party])
    first = outputs[-1] if outputs[-1].mode == "collaborative" else outputs[0]
    return {
        "type": "object",
        "required": ["rows"],
        "additionalProperties": False,
        "properties": {
            "rows": {
                "type": "array",
                "maxItems": settings.max_rows,
                "items": rows[0] if len(rows) == 1 else {"anyOf": rows},
            },
            "mode": {"enum": [*_unique([output.mode for output in outputs]), None]},
            "party": {"enum": [*parties, None]},
            "completed": {"type": "boolean"},
            "importance": {"type": "boolean"},
        },
        "example": {"rows": [_example(predictor, first)]},
    }


def _example(predictor: Predictor, output: Output) -> Schema:
    if output.mode == "local":
        return example_row(predictor.encoders[output.party])
    return {name: example_row(predictor.encoders[name]) for name in output.parties}


def _row(predictor: Predictor, output: Output) -> Schema:
    if output.mode == "local":
        return _cells(predictor.encoders[output.party])
    parties = {name: _cells(predictor.encoders[name]) for name in output.parties}
    return {"type": "object", "additionalProperties": False, "properties": parties}


def _cells(encoder: Encoder) -> Schema:
    if isinstance(encoder, ImageRows):
        properties: Schema = {IMAGE: {"type": ["array", "null"]}}
    else:
        properties = {
            column.name: {"type": [*column.json_type, "null"], "description": column.kind}
            for column in encoder.columns
        }
    return {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": properties,
    }


def _answers(predictor: Predictor) -> Schema:
    number = {"type": "number", "minimum": 0, "maximum": 1}
    texts, classes = {"type": "array", "items": TEXT}, predictor.task.classes
    answer = {
        "type": "object",
        "required": ["prediction", "mode", "parties", "completed", "notes"],
        "properties": {
            "id": TEXT,
            "prediction": {"enum": classes} if classes else {"type": "number"},
            "probabilities": {"type": "object", "additionalProperties": number},
            "mode": {"enum": ["local", "assisted", "collaborative", "prior"]},
            "parties": texts,
            "completed": {**number, "description": "Share of completed features."},
            "notes": texts,
            "completed_features": {"type": "object"},
            "importance": {"type": "object"},
        },
    }
    return {
        "type": "object",
        "required": ["bundle", "predictions"],
        "properties": {"bundle": TEXT, "predictions": {"type": "array", "items": answer}},
    }


def _infer_request() -> Schema:
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": TEXT,
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "datatype": {"enum": list(DATATYPES)},
            "data": {"type": "array"},
        },
    }
    named = {"type": "object", "required": ["name"], "properties": {"name": TEXT}}
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": TEXT,
            "parameters": {"type": "object", "properties": {"mode": TEXT, "party": TEXT}},
            "inputs": {"type": "array", "minItems": 1, "items": tensor},
            "outputs": {"type": "array", "items": named},
        },
    }


def _unique(values: list[Any]) -> list[Any]:
    return [each for at, each in enumerate(values) if each not in values[:at]]

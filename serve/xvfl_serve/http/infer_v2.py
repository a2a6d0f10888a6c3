"""The Open Inference Protocol, version 2: one tensor for each column, gaps as boolean tensors.

The input `age` holds the cells of the column age, `age.missing` (BOOL) marks its gaps. In modes of
several parties, a column is named PARTY.COLUMN. The mode and party are request parameters.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from starlette.responses import Response

from xvfl_serve.encoding.encoders import IMAGE, Encoder, ImageRows
from xvfl_serve.errors import RequestError, unknown
from xvfl_serve.http.bodies import check_rows
from xvfl_serve.http.json_response import json_response
from xvfl_serve.http.predict_route import PredictCall, optional_text
from xvfl_serve.http.size_limits import SizeLimits
from xvfl_serve.predictor import Options, Predictor
from xvfl_serve.row_report import Output

MISSING = ".missing"
"""Suffix of the boolean companion of an input."""
DATATYPES = {
    "BOOL": (bool,),
    "BYTES": (str,),
    **dict.fromkeys(
        ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"], (int,)
    ),
    **dict.fromkeys(["FP16", "FP32", "FP64"], (int, float)),
}
"""Accepted types of the elements."""
PREDICTION, PROBABILITIES = "prediction", "probabilities"
_ROW_OUTPUTS = {"completed": "FP64", "notes": "BYTES"}


def server_metadata(version: str) -> dict[str, Any]:
    """Describe the server."""
    return {"name": "xvfl-serve", "version": version, "extensions": []}


def model_metadata(name: str, predictor: Predictor) -> dict[str, Any]:
    """Describe the inputs and outputs of the default mode."""
    modes = [mode for mode, _ in predictor.outputs]
    unique = "collaborative" in modes or modes.count("local") == 1
    output = predictor.choose() if unique else next(iter(predictor.outputs.values()))
    inputs = []
    for party in output.parties:
        prefix = "" if output.mode == "local" else f"{party}."
        for column, datatype, shape in _columns(predictor.encoders[party]):
            name_of_input = prefix + column
            inputs += [
                {"name": name_of_input, "datatype": datatype, "shape": [-1, *shape]},
                {"name": name_of_input + MISSING, "datatype": "BOOL", "shape": [-1, *shape]},
            ]
    outputs = [
        {"name": each, "datatype": datatype, "shape": [-1, *_shape(each, predictor)]}
        for each, datatype in output_types(predictor).items()
    ]
    return {
        "name": name,
        "versions": [predictor.bundle.digest[:12]],
        "platform": "xvfl_onnx",
        "inputs": inputs,
        "outputs": outputs,
        "parameters": {"mode": output.mode, "party": output.party},
    }


def parse_infer(
    data: Mapping[str, Any], predictor: Predictor, limits: SizeLimits
) -> tuple[PredictCall, list[str]]:
    """Parse an inference request; return the call and the names of the requested outputs."""
    parameters = data.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestError("parameters: expected an object", "parameters")
    output = predictor.choose(optional_text(parameters, "mode"), optional_text(parameters, "party"))
    tensors = _tensors(data.get("inputs"), limits)
    counts = {name: len(each) for name, each in tensors.items()}
    if len(set(counts.values())) > 1:
        raise RequestError(f"inputs: expected the same number of rows, got {counts}", "inputs")
    rows: list[dict[str, Any]] = [{} for _ in range(next(iter(counts.values())))]
    for name, cells in tensors.items():
        if not (name.endswith(MISSING) and name[: -len(MISSING)] in tensors):
            gaps = tensors.get(name + MISSING)
            _fill(rows, name, _mask(cells, gaps, name), output)
    return (
        PredictCall(rows, output.mode, output.party or None, Options()),
        _requested(data.get("outputs"), list(output_types(predictor))),
    )


def infer_response(
    name: str,
    request: Mapping[str, Any],
    answers: Sequence[Mapping[str, Any]],
    wanted: Sequence[str],
    predictor: Predictor,
) -> Response:
    """Write answers as tensors."""
    types, classes = output_types(predictor), predictor.task.classes
    found: dict[str, list[Any]] = {
        PREDICTION: [str(each[PREDICTION]) if classes else each[PREDICTION] for each in answers],
        PROBABILITIES: [p for each in answers for p in each.get(PROBABILITIES, {}).values()],
        "mode": [each["mode"] for each in answers],
        "parties": ["+".join(each["parties"]) for each in answers],
        "completed": [each["completed"] for each in answers],
        "notes": ["; ".join(each["notes"]) for each in answers],
    }
    response: dict[str, Any] = {
        "model_name": name,
        "model_version": predictor.bundle.digest[:12],
        "outputs": [
            {
                "name": each,
                "datatype": types[each],
                "shape": [len(answers), *_shape(each, predictor)],
                "data": found[each],
            }
            for each in wanted
        ],
    }
    if isinstance(request.get("id"), str):
        response["id"] = request["id"]
    return json_response(response)


def output_types(predictor: Predictor) -> dict[str, str]:
    """Return the datatype of each output."""
    texts = dict.fromkeys(("mode", "parties"), "BYTES")
    if predictor.task.classes:
        return {PREDICTION: "BYTES", PROBABILITIES: "FP64", **texts, **_ROW_OUTPUTS}
    return {PREDICTION: "FP64", **texts, **_ROW_OUTPUTS}


def _shape(output: str, predictor: Predictor) -> list[int]:
    return [len(predictor.task.classes)] if output == PROBABILITIES else []


def _columns(encoder: Encoder) -> list[tuple[str, str, list[int]]]:
    """List the columns of a party with their datatypes and the shapes of a cell."""
    if isinstance(encoder, ImageRows):
        return [(IMAGE, "FP32", list(encoder.own_shape))]
    types = {"number": "FP64"}
    by_name = {column.name: types.get(column.kind, "BYTES") for column in encoder.columns}
    return [(name, by_name[name], []) for name in encoder.names]


def _tensors(inputs: Any, limits: SizeLimits) -> dict[str, list[Any]]:
    """Check the input tensors; return the cells of each."""
    if not isinstance(inputs, list) or not inputs:
        raise RequestError("inputs: expected a list of at least one tensor", "inputs")
    tensors: dict[str, list[Any]] = {}
    for each in inputs:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise RequestError("inputs: expected tensors with a name", "inputs")
        name = each["name"]
        if name in tensors:
            raise RequestError(f"input {name!r} occurs twice", name)
        tensors[name] = _cells(name, each, limits)
    return tensors


def _cells(name: str, tensor: Mapping[str, Any], limits: SizeLimits) -> list[Any]:
    """Return the elements of a tensor row by row; rows of images are arrays."""
    shape, datatype, data = (tensor.get(key) for key in ("shape", "datatype", "data"))
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise RequestError(f"input {name!r}: {unknown('datatype', str(datatype), DATATYPES)}", name)
    sizes = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    # Rows without elements would cost the sender nothing.
    if not isinstance(shape, list) or not shape or not sizes or 0 in shape[1:]:
        raise RequestError(
            f"input {name!r}: expected a shape of whole numbers: the rows, from 0, and the sizes "
            "of a row, from 1",
            name,
        )
    check_rows(shape[0], limits.rows)
    if len(shape) > limits.depth or max(shape) > limits.cells:
        raise RequestError(
            f"input {name!r}: expected at most {limits.depth} dimensions and {limits.cells} "
            "elements; send fewer rows",
            name,
        )
    if not isinstance(data, list):
        raise RequestError(f"input {name!r}: expected its elements in `data`", name)
    flat = _flatten(data)
    if len(flat) != math.prod(shape):
        raise RequestError(
            f"input {name!r}: expected {math.prod(shape)} elements for the shape {shape}, got "
            f"{len(flat)}",
            name,
        )
    allowed = DATATYPES[datatype]
    for value in flat:
        if type(value) not in allowed and not (value is None and datatype != "BOOL"):
            raise RequestError(
                f"input {name!r}: expected elements of {datatype}, got {str(value)[:50]!r}", name
            )
    if math.prod(shape[1:]) == 1 and len(shape) <= 2:
        return flat
    array = np.array([math.nan if each is None else each for each in flat], dtype=object)
    return list(array.reshape(shape))


def _flatten(data: list[Any]) -> list[Any]:
    flat: list[Any] = []
    stack = [iter(data)]
    while stack:
        for value in stack[-1]:
            if isinstance(value, list):
                stack.append(iter(value))
                break
            flat.append(value)
        else:
            stack.pop()
    return flat


def _mask(cells: list[Any], gaps: list[Any] | None, name: str) -> list[Any]:
    """Replace the cells at gaps by None, the pixels at gaps by NaN."""
    if gaps is None:
        return cells
    masked = []
    for cell, gap in zip(cells, gaps, strict=True):
        if isinstance(cell, np.ndarray):
            masked.append(_mask_pixels(cell, gap, name))
        else:
            if not isinstance(gap, bool):
                raise RequestError(f"input {name + MISSING!r}: expected BOOL", name + MISSING)
            masked.append(None if gap else cell)
    return masked


def _mask_pixels(cell: Any, gap: Any, name: str) -> Any:
    mask = np.asarray(gap)
    if mask.shape not in ((), cell.shape):
        raise RequestError(
            f"input {name + MISSING!r}: expected one flag per row, or the shape of its image "
            f"{cell.shape}, got {mask.shape}",
            name + MISSING,
        )
    return np.where(mask.astype(bool), math.nan, cell)


def _fill(rows: list[dict[str, Any]], name: str, cells: list[Any], output: Output) -> None:
    """Add a column to the rows."""
    if output.mode == "local":
        for row, cell in zip(rows, cells, strict=True):
            row[name] = cell
        return
    party = next((each for each in output.parties if name.startswith(f"{each}.")), None)
    if party is None:
        raise RequestError(
            f"input {name!r}: expected PARTY.COLUMN with one of the parties "
            f"{', '.join(output.parties)}",
            name,
        )
    for row, cell in zip(rows, cells, strict=True):
        row.setdefault(party, {})[name[len(party) + 1 :]] = cell


def _requested(outputs: Any, valid: list[str]) -> list[str]:
    if not outputs:
        return valid
    if not isinstance(outputs, list):
        raise RequestError("outputs: expected a list of names", "outputs")
    names = []
    for each in outputs:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str):
            raise RequestError("outputs: expected objects with a name", "outputs")
        if name not in valid:
            raise RequestError(unknown("output", name, valid), name)
        if name in names:
            raise RequestError(f"output {name!r} occurs twice; request it once", name)
        names.append(name)
    return names

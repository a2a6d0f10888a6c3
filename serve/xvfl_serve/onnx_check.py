"""Find tensors of an ONNX file whose data lie in other files, and operators of foreign nets.

ONNX Runtime reads such files from this machine, outside the checksums and the signature of a
bundle. Of the operators, loops need not end. Only the fields that lead to tensors and nodes are
followed; see onnx.proto.
"""

from collections.abc import Iterator

_TENSOR, _NODE, _FUNCTION = "tensor", "node", "function"
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: _FUNCTION},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: _NODE, 5: _TENSOR, 15: "sparse"},
    _NODE: {5: "attribute"},
    "attribute": {5: _TENSOR, 6: "graph", 10: _TENSOR, 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {},
}
"""The messages within each message, by the number of the field."""
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_OPERATOR, _DOMAIN = 4, 7
_NAMES = """
    Add And ArgMin Cast Clip Concat Constant ConstantOfShape Conv Cos Div Equal Expand EyeLike
    Flatten Gather Gemm Greater GreaterOrEqual Identity InstanceNormalization Log LogSoftmax
    MatMul Mul NonZero Not Or Range ReduceL2 ReduceMean ReduceProd ReduceSum Relu Reshape Resize
    ScatterElements Shape Sigmoid Sin Slice Softmax Split Squeeze Sub Tanh Tile Transpose
    Unsqueeze Where
"""
OPERATORS = frozenset(_NAMES.split())
"""The operators that `xvfl export` writes; the tests compare them with exported models."""
_DOMAINS = ("", "ai.onnx")
MAX_MESSAGES = 1_000_000


def check_self_contained(nets: bytes) -> None:
    """Raise `ValueError` if an ONNX file refers to other files, or is not one of `xvfl export`."""
    view, waiting, count = memoryview(nets), [("model", 0, len(nets))], 0
    while waiting:
        kind, start, end = waiting.pop()
        if kind == _FUNCTION:
            raise ValueError("the ONNX file has functions, which `xvfl export` does not write")
        count += 1
        if count > MAX_MESSAGES:
            raise ValueError(f"expected at most {MAX_MESSAGES} protobuf messages in the ONNX file")
        for number, wire_type, value, stop in _fields(view, start, end):
            if kind == _TENSOR and (
                number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0)
            ):
                raise ValueError("the ONNX file has external data, which is not allowed")
            if kind == _NODE and number in (_OPERATOR, _DOMAIN):
                _check_operator(number, bytes(view[value:stop]) if wire_type == _BYTES else b"?")
            if wire_type == _BYTES and number in _FIELDS[kind]:
                waiting.append((_FIELDS[kind][number], value, stop))


def _check_operator(number: int, name: bytes) -> None:
    text = name.decode(errors="replace")
    if text not in (OPERATORS if number == _OPERATOR else _DOMAINS):
        what = "operator" if number == _OPERATOR else "domain"
        raise ValueError(
            f"the ONNX file has the {what} {text[:50]!r}, which `xvfl export` does not write"
        )


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, value (or start) and end of each field of a message."""
    while at < end:
        key, at = _varint(view, at, end)
        if not 8 <= key < 2**32:
            raise ValueError("not an ONNX file")
        number, wire_type, value = key >> 3, key & 7, at
        if wire_type == _VARINT:
            value, at = _varint(view, at, end)
        elif wire_type == _BYTES:
            size, value = _varint(view, at, end)
            at = value + size
        elif wire_type in (_FIXED32, _FIXED64):
            at += 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError("not an ONNX file")
        if at > end:
            raise ValueError("the ONNX file is truncated")
        yield number, wire_type, value, at


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise ValueError("the ONNX file is truncated")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("not an ONNX file")

"""Compressed encodings of embeddings, cues and gradients.

    float32   lossless
    bf16      the upper half of each float32
    fp16      half precision, scaled by a power of two per row, whose exponent is the last number
    int8      integers from −127 to 127, scaled per row; the last 4 bytes are the float32 scale
A row is the last dimension: (..., d). A row with NaN or infinity is decoded to a row with NaN or
infinity, so that the receiver's validation works with every payload.
"""

from collections.abc import Callable
from math import prod
from typing import Literal

import torch
from torch import Tensor

from xvfl.errors import WireError

Payload = Literal["float32", "bf16", "fp16", "int8"]

MAX_VALUES = 2**26
"""Numbers that the error feedback of one stream may store: 256 MiB."""
SCALE_BYTES = 4


def pack(values: Tensor, payload: Payload) -> Tensor:
    """Encode rows."""
    values = values.detach()
    return values if payload == "float32" else _PACKS[payload](_bounded(values))


def unpack(sent: Tensor, payload: Payload, what: str = "payload") -> Tensor:
    """Decode rows; reject a tensor of another payload."""
    expected = _DTYPES[payload]
    if sent.dtype not in expected:
        raise WireError(
            f"{what}: expected {' or '.join(map(str, expected))} for the payload {payload!r}, "
            f"got {sent.dtype}; both sides must use the same run settings"
        )
    extra = {"fp16": 1, "int8": SCALE_BYTES}.get(payload, 0)
    if extra and (not sent.dim() or sent.shape[-1] < extra):
        raise WireError(
            f"{what}: expected rows of {extra} or more for the payload {payload!r}, "
            f"got shape {tuple(sent.shape)}"
        )
    return sent if payload == "float32" else _UNPACKS[payload](sent)


class ErrorFeedback:
    """Error feedback: the rounding error of each row's gradient is added to its next gradient.

    Errors are stored by handle, because the rows of two batches differ. Rows without a handle, and
    handles beyond the memory limit, have no feedback.
    """

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        """Store at most `max_values` numbers for each stream."""
        self._max_values = max_values
        self._errors: dict[str, Tensor] = {}

    def add(self, stream: str, values: Tensor, handles: Tensor) -> Tensor:
        """Add the stored errors of these rows. (H, ...)"""
        errors, stored = self._stream_errors(stream, values, handles)
        total = values.detach().clone()
        total[stored] += errors[handles[stored]]
        return total

    def store(self, stream: str, error: Tensor, handles: Tensor) -> None:
        """Store the errors of these rows. (H, ...)"""
        errors, stored = self._stream_errors(stream, error, handles)
        # The receiver rejects a gradient with NaN; it must not affect later gradients.
        errors[handles[stored]] = error[stored].nan_to_num(0.0, 0.0, 0.0)

    def _stream_errors(self, stream: str, like: Tensor, handles: Tensor) -> tuple[Tensor, Tensor]:
        """Return a stream's errors by handle, and the indices of the rows that have one."""
        shape = like.shape[1:]
        limit = self._max_values // max(prod(shape), 1)
        size = min(int(handles.max()) + 1 if len(handles) else 0, limit)
        errors = self._errors.get(stream)
        if errors is None or errors.shape[1:] != shape:
            errors = like.new_zeros(0, *shape)
        if size > len(errors):
            errors = torch.cat((errors, errors.new_zeros(size - len(errors), *shape)))
        self._errors[stream] = errors
        return errors, ((handles >= 0) & (handles < limit)).nonzero().flatten()


class Packer:
    """Encode and decode the tensors that one side exchanges with another."""

    def __init__(self, payload: Payload = "float32", feedback: bool = True) -> None:
        """Choose the payload; `feedback` enables error feedback for gradients."""
        self.payload: Payload = payload
        self._feedback = ErrorFeedback() if feedback and payload != "float32" else None

    def pack(self, values: Tensor) -> Tensor:
        """Encode embeddings or cues; their errors do not accumulate, so they need no feedback."""
        return pack(values, self.payload)

    def pack_gradient(self, stream: str, values: Tensor, handles: Tensor) -> Tensor:
        """Encode gradients with error feedback; handle −1 has none. (H, ...)"""
        if self._feedback is None:
            return pack(values, self.payload)
        handles = handles.to(values.device).long()
        corrected = self._feedback.add(stream, values, handles)
        sent = pack(corrected, self.payload)
        self._feedback.store(stream, corrected - unpack(sent, self.payload), handles)
        return sent

    def unpack(self, sent: Tensor, what: str) -> Tensor:
        """Decode a tensor of the other side; `what` names it in errors."""
        return unpack(sent, self.payload, what)


def _bounded(values: Tensor) -> Tensor:
    """Clamp finite numbers, so that rounding does not make them infinite."""
    limit = torch.finfo(torch.bfloat16).max
    return torch.where(values.isinf(), values, values.clamp(-limit, limit))


def _to_bf16(values: Tensor) -> Tensor:
    return values.to(torch.bfloat16)


def _to_fp16(values: Tensor) -> Tensor:
    largest = values.float().abs().amax(-1, keepdim=True)
    finite = largest.isfinite()
    exponent = torch.frexp(torch.where(finite, largest, 1.0))[1].clamp(-126, 126)
    last = torch.where(finite, exponent.half(), torch.nan)
    return torch.cat((torch.ldexp(values.float(), -exponent).half(), last), -1)


def _from_fp16(sent: Tensor) -> Tensor:
    rows = sent.float()
    return rows[..., :-1] * torch.exp2(rows[..., -1:])


def _to_int8(values: Tensor) -> Tensor:
    scale = values.float().abs().amax(-1, keepdim=True) / 127
    steps = values / torch.where(scale > 0, scale, 1.0)
    integers = steps.round().nan_to_num(0.0, 0.0, 0.0).clamp(-127, 127).to(torch.int8)
    return torch.cat((integers, _copy(scale).view(torch.int8)), -1)


def _from_int8(sent: Tensor) -> Tensor:
    scale = _copy(sent[..., -SCALE_BYTES:]).view(torch.float32)
    return sent[..., :-SCALE_BYTES].float() * scale


def _copy(values: Tensor) -> Tensor:
    """Copy to aligned memory that can be viewed as another dtype; `contiguous` may not copy."""
    return values.clone(memory_format=torch.contiguous_format)


_DTYPES: dict[Payload, tuple[torch.dtype, ...]] = {
    "float32": (torch.float32, torch.float64),
    "bf16": (torch.bfloat16,),
    "fp16": (torch.float16,),
    "int8": (torch.int8,),
}
_PACKS: dict[Payload, Callable[[Tensor], Tensor]] = {
    "bf16": _to_bf16,
    "fp16": _to_fp16,
    "int8": _to_int8,
}
_UNPACKS: dict[Payload, Callable[[Tensor], Tensor]] = {
    "bf16": Tensor.float,
    "fp16": _from_fp16,
    "int8": _from_int8,
}

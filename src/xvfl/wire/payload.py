"""Smaller payloads: what embeddings, cues and gradients become on the wire, and back.

    float32   as computed; nothing is lost
    bf16      the first half of each float32
    fp16      half floats over a power of two, whose exponent is the row's last number
    int8      whole numbers of steps, the row's largest being 127 of them; the step, a float32, is
              the row's last 4 bytes
A row is the last dimension: (..., d). A row that is not finite comes back as one that is not, so
that the checks of what arrives hold for every payload.
"""

from collections.abc import Callable
from math import prod
from typing import Literal

import torch
from torch import Tensor

from xvfl.errors import WireError

Payload = Literal["float32", "bf16", "fp16", "int8"]

MOST_VALUES = 2**26
"""Numbers that one stream's feedback may remember: 256 MiB."""
SCALE_BYTES = 4


def pack(values: Tensor, payload: Payload) -> Tensor:
    """Turn rows into what travels."""
    values = values.detach()
    return values if payload == "float32" else _PACKS[payload](_bounded(values))


def unpack(sent: Tensor, payload: Payload, what: str = "payload") -> Tensor:
    """Turn what travelled into rows again; refuse what another payload would have sent."""
    expected = _DTYPES[payload]
    if sent.dtype not in expected:
        raise WireError(
            f"{what}: expected {' or '.join(map(str, expected))} for the payload {payload!r}, "
            f"got {sent.dtype}; both sides must be told of the same run"
        )
    extra = {"fp16": 1, "int8": SCALE_BYTES}.get(payload, 0)
    if extra and (not sent.dim() or sent.shape[-1] < extra):
        raise WireError(
            f"{what}: expected rows of {extra} or more for the payload {payload!r}, "
            f"got shape {tuple(sent.shape)}"
        )
    return sent if payload == "float32" else _UNPACKS[payload](sent)


class Feedback:
    """What packing has cut off each row's gradient, to be added to that row's next one.

    A row's residual goes with its handle: two batches have different rows in the same places, and
    the residual of one row says nothing about another. Rows without a handle, and those with one
    beyond what may be remembered, get none.
    """

    def __init__(self, most: int = MOST_VALUES) -> None:
        """Remember so many numbers at the most for each stream."""
        self._most = most
        self._rests: dict[str, Tensor] = {}

    def add(self, stream: str, values: Tensor, handles: Tensor) -> Tensor:
        """Add what was cut off these rows before. (H, ...)"""
        rest, kept = self._rest(stream, values, handles)
        made = values.detach().clone()
        made[kept] += rest[handles[kept]]
        return made

    def keep(self, stream: str, residual: Tensor, handles: Tensor) -> None:
        """Remember what was cut off these rows now. (H, ...)"""
        rest, kept = self._rest(stream, residual, handles)
        # A gradient that is not finite is refused by who gets it; it must not spoil later ones.
        rest[handles[kept]] = residual[kept].nan_to_num(0.0, 0.0, 0.0)

    def _rest(self, stream: str, like: Tensor, handles: Tensor) -> tuple[Tensor, Tensor]:
        """Give a stream's residuals by handle, and which rows have a place among them."""
        shape = like.shape[1:]
        limit = self._most // max(prod(shape), 1)
        wanted = min(int(handles.max()) + 1 if len(handles) else 0, limit)
        rest = self._rests.get(stream)
        if rest is None or rest.shape[1:] != shape:
            rest = like.new_zeros(0, *shape)
        if wanted > len(rest):
            rest = torch.cat((rest, rest.new_zeros(wanted - len(rest), *shape)))
        self._rests[stream] = rest
        return rest, ((handles >= 0) & (handles < limit)).nonzero().flatten()


class Packer:
    """One side's packing of what it exchanges with one other side."""

    def __init__(self, payload: Payload = "float32", feedback: bool = True) -> None:
        """Choose the payload; `feedback` makes up for what is cut off gradients."""
        self.payload: Payload = payload
        self._feedback = Feedback() if feedback and payload != "float32" else None

    def pack(self, values: Tensor) -> Tensor:
        """Pack embeddings or cues: states, not sums of steps, so an old error is no debt."""
        return pack(values, self.payload)

    def pack_gradient(self, stream: str, values: Tensor, handles: Tensor) -> Tensor:
        """Pack rows' gradients with what was cut off them before; −1: no handle. (H, ...)"""
        if self._feedback is None:
            return pack(values, self.payload)
        handles = handles.to(values.device).long()
        wanted = self._feedback.add(stream, values, handles)
        sent = pack(wanted, self.payload)
        self._feedback.keep(stream, wanted - unpack(sent, self.payload), handles)
        return sent

    def unpack(self, sent: Tensor, what: str) -> Tensor:
        """Unpack what the other side sent."""
        return unpack(sent, self.payload, what)


def _bounded(values: Tensor) -> Tensor:
    """Keep rounding from making a finite number infinite."""
    most = torch.finfo(torch.bfloat16).max
    return torch.where(values.isinf(), values, values.clamp(-most, most))


def _to_bf16(values: Tensor) -> Tensor:
    return values.to(torch.bfloat16)


def _to_fp16(values: Tensor) -> Tensor:
    largest = values.float().abs().amax(-1, keepdim=True)
    finite = largest.isfinite()
    exponent = torch.frexp(torch.where(finite, largest, 1.0))[1].clamp(-126, 126)
    said = torch.where(finite, exponent.half(), torch.nan)
    return torch.cat((torch.ldexp(values.float(), -exponent).half(), said), -1)


def _from_fp16(sent: Tensor) -> Tensor:
    rows = sent.float()
    return rows[..., :-1] * torch.exp2(rows[..., -1:])


def _to_int8(values: Tensor) -> Tensor:
    scale = values.float().abs().amax(-1, keepdim=True) / 127
    steps = values / torch.where(scale > 0, scale, 1.0)
    whole = steps.round().nan_to_num(0.0, 0.0, 0.0).clamp(-127, 127).to(torch.int8)
    return torch.cat((whole, _fresh(scale).view(torch.int8)), -1)


def _from_int8(sent: Tensor) -> Tensor:
    scale = _fresh(sent[..., -SCALE_BYTES:]).view(torch.float32)
    return sent[..., :-SCALE_BYTES].float() * scale


def _fresh(values: Tensor) -> Tensor:
    """Copy to memory that can be seen as another type: `contiguous` leaves an odd beginning."""
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

"""What a message's contents must be, before anything is done with them."""

import math
from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor

from xvfl.errors import WireError
from xvfl.methods.base import View
from xvfl.training.optimizer import Kind
from xvfl.wire.messages import Instruction, Ready

MOST_VIEWS = 64
"""Views of one batch; each costs a pass through a net."""
LARGEST = 1e12
"""Size of a number in a party's answer: its square must be finite in a loss over all rows."""
PAGE_KINDS = frozenset(("fresh", "look_back", "correct"))


def check_tensor(
    name: str, value: Tensor, shape: Sequence[int], dtype: torch.dtype | None
) -> Tensor:
    """Refuse another shape or type, and numbers that are none."""
    if tuple(value.shape) != tuple(shape):
        raise WireError(f"{name}: expected shape {tuple(shape)}, got {tuple(value.shape)}")
    if dtype is not None and value.dtype != dtype:
        raise WireError(f"{name}: expected {dtype}, got {value.dtype}")
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise WireError(f"{name}: expected finite numbers, got NaN or infinity")
    return value


def check_size(name: str, value: Tensor) -> Tensor:
    """Refuse numbers so large that the loss, and with it all_parties's gradients, would be none."""
    if value.numel() and float(value.abs().max()) > LARGEST:
        raise WireError(
            f"{name}: expected numbers up to {LARGEST:g}, got {float(value.abs().max()):g}; "
            "its training has diverged"
        )
    return value


def check_handles(handles: Tensor, rows: int) -> None:
    """Refuse handles of rows that are not there."""
    if handles.dtype != torch.int32 or handles.dim() != 1:
        raise WireError(f"handles: expected (B,) int32, got {handles.dtype} {tuple(handles.shape)}")
    if len(handles) and (int(handles.min()) < -1 or int(handles.max()) >= rows):
        raise WireError(
            f"handles: expected -1 to {rows - 1}, got {int(handles.min())} to "
            f"{int(handles.max())}; match ids again if rows were added or removed"
        )


def check_views(views: Sequence[str], completes: bool) -> None:
    """Refuse views that a party cannot make."""
    known = get_args(View)
    if not views or not set(views) <= set(known):
        raise WireError(f"Embed: expected views among {known}, got {tuple(views)[:MOST_VIEWS]}")
    if len(views) > MOST_VIEWS or views.count("plain") > 1:
        raise WireError(
            f"Embed: expected at most {MOST_VIEWS} views and one 'plain', got {len(views)} and "
            f"{views.count('plain')}"
        )
    if "self" in views and not completes:
        raise WireError("Embed: expected no view 'self': this run's method completes nothing")


def check_instructions(instructions: Sequence[Instruction], applied: int, page: bool) -> None:
    """Refuse an update made before, or one this optimizer does not know."""
    for each in instructions:
        if each.number <= applied:
            raise WireError(f"update {each.number}: made already; the last one was {applied}")
        if each.kind not in get_args(Kind):
            raise WireError(f"update: expected one of {get_args(Kind)}, got {each.kind!r}")
        paging = each.kind in PAGE_KINDS
        if each.kind not in ("keep", "best") and paging != page:
            raise WireError(f"update {each.kind!r}: not one of this run's optimizer")
        if not (math.isfinite(each.rate) and each.rate >= 0):
            raise WireError(f"update: expected a learning rate of 0 or more, got {each.rate}")
        applied = each.number


def check_ready(ready: Ready, step: int, update: int, rows: int | None) -> None:
    """Refuse a place in the run that is not there yet, and holdings of other rows than matched."""
    if not (0 <= ready.step <= step and 0 <= ready.applied <= update):
        raise WireError(
            f"Ready: expected a step up to {step} and an update up to {update}, got {ready.step} "
            f"and {ready.applied}"
        )
    held = ready.holdings
    if held.dtype != torch.uint8 or held.dim() != 1 or (len(held) and int(held.max()) > 2):
        raise WireError(
            f"Ready: expected holdings (n,) uint8 of 0, 1 or 2, got {held.dtype} "
            f"{tuple(held.shape)}; run the same version of xvfl on both sides"
        )
    if rows is not None and len(held) != rows:
        raise WireError(
            f"Ready: expected holdings of the {rows} rows that were matched, got {len(held)}; "
            "match ids again"
        )

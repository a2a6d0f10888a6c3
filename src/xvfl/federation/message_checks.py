"""Validate the contents of messages before they have any effect."""

import json
import math
from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from xvfl.config import build
from xvfl.errors import ConfigError, WireError
from xvfl.methods.base import View
from xvfl.system.printable import one_line
from xvfl.training.optimizer import UpdateKind
from xvfl.wire.messages import Complete, Instruction, Ready

MAX_REASON = 500
"""Characters of an error about a document."""
PAGE_KINDS = frozenset(("page_refresh", "page_look_back", "page_correct"))


def parse_document(cls: type, text: str, where: str) -> Any:
    """Build a dataclass from the JSON of a message; every key and value is checked."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{where}: expected JSON") from error
    if not isinstance(data, dict):
        raise WireError(f"{where}: expected a JSON object")
    try:
        return build(cls, data, where)
    except ConfigError as error:
        # It quotes the document.
        raise WireError(one_line(str(error), MAX_REASON)) from error


def check_tensor(
    name: str, value: Tensor, shape: Sequence[int], dtype: torch.dtype | None
) -> Tensor:
    """Reject a wrong shape or dtype, NaN and infinity."""
    if tuple(value.shape) != tuple(shape):
        raise WireError(f"{name}: expected shape {tuple(shape)}, got {tuple(value.shape)}")
    if dtype is not None and value.dtype != dtype:
        raise WireError(f"{name}: expected {dtype}, got {value.dtype}")
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise WireError(f"{name}: expected finite numbers, got NaN or infinity")
    return value


def check_handles(handles: Tensor, n_rows: int) -> None:
    """Reject handles outside the party's table."""
    if handles.dtype != torch.int32 or handles.dim() != 1:
        raise WireError(f"handles: expected (B,) int32, got {handles.dtype} {tuple(handles.shape)}")
    if len(handles) and (int(handles.min()) < -1 or int(handles.max()) >= n_rows):
        raise WireError(
            f"handles: expected -1 to {n_rows - 1}, got {int(handles.min())} to "
            f"{int(handles.max())}; match ids again if rows were added or removed"
        )


def check_views(views: Sequence[str], completes: bool) -> None:
    """Reject unknown views, and views that need a completer where there is none."""
    valid = get_args(View)
    if not views or not set(views) <= set(valid):
        raise WireError(f"Embed: expected views among {valid}, got {tuple(views)[:9]}")
    if views.count("plain") > 1:
        raise WireError(f"Embed: expected one view 'plain', got {views.count('plain')}")
    if "self" in views and not completes:
        raise WireError("Embed: view 'self' needs a completer, and this run's method has none")


def check_completion(message: Complete, completes: bool, rows: int, embedding: Tensor) -> None:
    """Reject cues that do not fit an embedding, and completions where there is no completer."""
    if not completes:
        raise WireError("Complete: needs a completer, and this run's method has none")
    check_tensor("cue", message.cue, (rows, embedding.shape[-1]), embedding.dtype)
    check_tensor("replace_observed", message.replace_observed, (rows,), torch.bool)


def check_instructions(instructions: Sequence[Instruction], last_update: int, page: bool) -> None:
    """Reject an update that was applied before, or that this run's optimizer does not support."""
    for each in instructions:
        if each.number <= last_update:
            raise WireError(
                f"update {each.number}: already applied; the last update was {last_update}"
            )
        if each.kind not in get_args(UpdateKind):
            raise WireError(f"update: expected one of {get_args(UpdateKind)}, got {each.kind!r}")
        if each.kind not in ("save_best", "load_best") and (each.kind in PAGE_KINDS) != page:
            raise WireError(f"update {each.kind!r}: not supported by this run's optimizer")
        if not (math.isfinite(each.rate) and each.rate >= 0):
            raise WireError(f"update: expected a learning rate of 0 or more, got {each.rate}")
        last_update = each.number


def check_ready(ready: Ready, step: int, update: int, n_rows: int | None) -> None:
    """Reject another checkpoint than that of a step, and a row status of the wrong length."""
    if (ready.step, ready.last_update) != (step, update):
        raise WireError(
            f"Ready: expected the checkpoint of step {step} after update {update}, got step "
            f"{ready.step} and update {ready.last_update}; restore the party's state folder, or "
            "start another run"
        )
    status = ready.row_status
    if status.dtype != torch.uint8 or status.dim() != 1 or (len(status) and int(status.max()) > 2):
        raise WireError(
            f"Ready: expected row status (n,) uint8 of 0, 1 or 2, got {status.dtype} "
            f"{tuple(status.shape)}; run the same version of xvfl on both sides"
        )
    if n_rows is not None and len(status) != n_rows:
        raise WireError(
            f"Ready: expected the status of the {n_rows} matched rows, got {len(status)}; "
            "match ids again"
        )

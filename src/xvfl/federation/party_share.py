"""Checks on validation rows: equal answers to equal requests, and the loss without each party."""

from collections.abc import Iterator

import torch
from torch import Tensor

from xvfl.federation.elastic import ElasticFederation
from xvfl.federation.predict import logits
from xvfl.methods.base import Method
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import CLASSIFICATION, Task

MAX_ROWS = 1000
"""Validation rows, at most."""


@torch.no_grad()
def check_repeatability(method: Method, federation: ElasticFederation, rows: Rows) -> None:
    """Request the embeddings of the same rows twice before training; noise differs."""
    federation.train(False)
    taken = rows.take(torch.arange(min(len(rows), MAX_ROWS), device=rows.device))
    for _ in range(2):
        federation.run_batch(
            method,
            taken,
            lambda parties, _, batch: parties.embed(
                batch.repeat_for_members(federation.terms.members), ["plain"]
            ),
        )


def check_validation(
    method: Method, federation: ElasticFederation, rows: Rows, task: Task = CLASSIFICATION
) -> None:
    """Check at the end of an epoch whether a party makes the validation loss worse.

    With the policy `leave_out`, exclude the party that increases the loss most.
    """
    monitor = federation.monitor
    if monitor is None:
        return
    present, harmful = federation.present, dict[int, str]()
    losses = list(_row_losses(method, federation, rows, task))
    # If a party left meanwhile, the losses cannot be compared.
    for party, with_party, without in losses if federation.present == present else ():
        reason = monitor.check_validation(federation.names[party], with_party, without)
        if reason is not None:
            harmful[party] = reason
    monitor.end_epoch()
    if monitor.policy == "leave_out" and harmful:
        worst = min(harmful, key=lambda party: monitor.explained[federation.names[party]])
        federation.exclude(worst, harmful[worst])


def _row_losses(
    method: Method, federation: ElasticFederation, rows: Rows, task: Task
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each present party, and the collaborative loss of rows with and without it. (n,)

    The rows are those that the party and another present party observed.
    """
    present = list(federation.present)
    if "collaborative" not in method.modes or len(present) < 2:
        return
    index = (rows.seen[:, present].sum(1) >= 2).nonzero().flatten()[:MAX_ROWS]
    if not len(index):
        return
    taken = rows.take(index)
    with_all = _losses(method, federation, taken, task)
    for party in present:
        with federation.leave_out(party):
            without = _losses(method, federation, taken, task)
        observed = taken.seen[:, party].cpu()
        yield party, with_all[observed], without[observed]


def _losses(method: Method, federation: ElasticFederation, rows: Rows, task: Task) -> Tensor:
    return task.loss(logits(method, federation, rows, "collaborative", 0), rows.y.cpu())

"""What a party uploads of a row: its embedding as observed, and those of masked copies.

The masks of a row are fixed for a version: they depend on the party's secret, the version of its
encoder and the row's number, so sending an upload again reveals nothing more. With differential
privacy the embedding is noisy, and there are no copies.
Shapes: n rows, c masked copies, d embedding width.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from xvfl.errors import ConfigError
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.upload.private_worker import PrivateWorker
from xvfl.primitives.masks import drop_features
from xvfl.primitives.random import CounterRNG

ROWS_AT_ONCE = 4096


def compute_views(worker: PartyWorker, handles: Tensor, n_copies: int) -> Tensor:
    """Embed rows: as observed, then their masked copies, in half precision. (n, 1 + c, d)

    With stacked runs, the rows are ordered run by run.
    """
    parts = list(iterate_views(worker, handles, n_copies))
    return torch.cat(parts, 1).flatten(0, 1)


@torch.no_grad()
def iterate_views(worker: PartyWorker, handles: Tensor, n_copies: int) -> Iterator[Tensor]:
    """Embed rows chunk by chunk; each chunk has as many rows of every run. (R, chunk, 1 + c, d)"""
    net, runs = worker.net, len(worker.seeds)
    if isinstance(worker, PrivateWorker):
        if n_copies:
            raise ConfigError(f"masked_copies: expected 0 with `epsilon`, got {n_copies}")
        yield worker.embed(handles, ["plain"], 0).half().unsqueeze(0)
        return
    draws = [CounterRNG(worker.seeds, worker.name, "upload", copy) for copy in range(n_copies)]
    was_training = net.training
    net.eval()
    try:
        for chunk in torch.split(handles.view(runs, -1), ROWS_AT_ONCE, 1):
            flat = chunk.flatten()
            rows = worker.table.take(flat)
            x, masks = net.encode(rows), [rows.observed]
            for rng in draws:
                uniform = rng.uniform_by_key(flat, 1 + rows.observed.shape[1])
                masks.append(drop_features(rows.observed, uniform))
            embeddings = [net.embed(x, mask).half() for mask in masks]
            yield torch.stack(embeddings, 1).view(*chunk.shape, len(masks), -1)
    finally:
        net.train(was_training)

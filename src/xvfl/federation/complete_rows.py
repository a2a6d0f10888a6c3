"""Complete a party's rows for somebody to look at."""

import torch
from torch import Tensor

from xvfl import maths
from xvfl.federation.fused import FusedFederation
from xvfl.primitives.rows import Rows


@torch.no_grad()
def completed(federation: FusedFederation, rows: Rows, party: int) -> Tensor:
    """Fill the gaps of a party's rows in the encoded space; what was observed stays. (N, p)

    The cue comes from the parties that hold the row in full; where none does, from the party's own
    features if it saw any, else from whatever the others saw (D2).
    """
    federation.train(False)
    worker = federation.workers[party]
    E = federation.embed(rows, ["plain"])[:, :, 0]
    cue, has_cue = maths.cues(E, maths.sources(rows.full, rows.seen))
    alone = ~maths.others(rows.full, party).any(1) & rows.seen[:, party]
    own = (alone | ~has_cue[:, party]).unsqueeze(-1)
    taken = worker.table.take(rows.handles[:, party])
    x = worker.net.encode(taken)
    made = worker.net.complete(x, taken.observed, torch.where(own, E[:, party], cue[:, party]))[1]
    return maths.merge(x, made, worker.net.spread(taken.observed))

"""Complete a party's rows in feature space."""

import torch
from torch import Tensor

from xvfl import maths
from xvfl.federation.fused import FusedFederation
from xvfl.primitives.rows import Rows


@torch.no_grad()
def complete_rows(federation: FusedFederation, rows: Rows, party: int, members: int = 1) -> Tensor:
    """Fill the missing features of a party's rows; observed features stay. (N, p)

    The cue is the mean embedding of the other parties that hold the row in full. Where there is
    none, it is the party's own embedding if the party observed any feature, else the mean embedding
    of the parties that did (D2). The result is the mean over members; vectors of hashed categories
    are those of the first member, since each member has its own.
    """
    federation.train(False)
    count, rows = len(rows), rows.repeat_for_members(members)
    worker = federation.workers[party]
    E = federation.embed(rows, ["plain"])[:, :, 0]
    cue, _ = maths.cues(E, maths.sources(rows.full, rows.seen))
    use_own = uses_own_cue(rows, party).unsqueeze(-1)
    table = worker.table.take(rows.handles[:, party])
    x = worker.net.encode(table)
    cue = torch.where(use_own, E[:, party], cue[:, party])
    _, completed = worker.net.complete(x, table.observed, cue)
    values = maths.merge(x, completed, worker.net.spread(table.observed))
    if members == 1:
        return values
    by_member = values.view(members, count, -1)
    dense = worker.net.layout.dense
    return torch.cat([by_member.mean(0)[:, :dense], by_member[0][:, dense:]], 1)


def uses_own_cue(rows: Rows, party: int) -> Tensor:
    """Tell which rows of a party are completed from its own embedding. (N,)"""
    no_full_peer = ~maths.others(rows.full, party).any(1) & rows.seen[:, party]
    has_cue = maths.others(maths.sources(rows.full, rows.seen), party).any(1)
    return no_full_peer | ~has_cue

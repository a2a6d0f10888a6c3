"""A dishonest coordinator hijacks interactive training with gradients of its own making.

D. Pasquini, G. Ateniese, M. Bernaschi, Unleashing the tiger: inference attacks on split learning,
CCS 2021; here with the features of a few known rows instead of a similar public table.
Shapes: m rows, M members, d embedding width of a member, p encoded columns.
"""

import torch

from xvfl.audit.feature_attacks import decoder_attack, embed_rows
from xvfl.audit.scoring import FeatureScore
from xvfl.federation.member_rows import join_members, split_members
from xvfl.federation.party_worker import PartyWorker
from xvfl.primitives.random import named_generator
from xvfl.primitives.rows import PartyTable

BATCH, RATE = 64, 3e-3


def hijack(worker: PartyWorker, table: PartyTable, n_known: int, steps: int) -> FeatureScore:
    """Send gradients that train the party's bottom to encode its features; then decode all rows.

    The gradients move the embeddings of known rows towards a fixed linear code of their features.
    """
    net, members = worker.net, len(worker.seeds)
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    known, rng = order[:n_known], named_generator("cpu", "hijack")
    values = table.values.flatten(1)
    width = embed_rows(net, table.take(known[:1]), members).shape[1]
    code = torch.randn(values.shape[1], width, generator=rng) / values.shape[1] ** 0.5
    optimizer = torch.optim.AdamW(net.parameters(), RATE)
    net.train()
    for step in range(steps):
        picked = known[torch.randperm(len(known), generator=rng)[:BATCH]]
        E = worker.embed(picked.repeat(members), ["plain"], step)[:, 0]
        wrong = join_members(E.detach(), members) - (values[picked] - 0.5) @ code
        optimizer.zero_grad()
        E.backward(split_members(wrong / len(picked), members))  # type: ignore[no-untyped-call]
        optimizer.step()
    return decoder_attack(embed_rows(net, table, members), table, n_known)[0]

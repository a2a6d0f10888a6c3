"""X-VFL's loss once more: one row and one party at a time, slow and obviously correct.

Written from the paper and its reading (One completion rule, The loss, D1, D2), in plain loops, and
sharing no line with the package. Names: `E` embeddings, `E_` completed ones, `M` the parties where
the row is full, `x` (p,) encoded features of one row at one party, `o` marks of its raw features.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Party:
    """What the loss needs of a party."""

    f: Callable[[Tensor, list[bool]], Tensor]
    """f_i: encoded features (p,), 0 where no value stands, and which raw ones are given. (d,)"""
    xcom: Callable[[Tensor], Tensor]
    """XCom_i: a cue (d,) to all encoded features (p,)."""
    columns: Sequence[int]
    """Raw feature of each encoded column."""


@dataclass(frozen=True)
class Row:
    """One row, as every party holds it."""

    x: list[Tensor]
    o: list[list[bool]]
    full: list[bool]
    y: int | float
    """A class, −1 for none; or a number, NaN for none."""
    weight: float = 1.0


@dataclass(frozen=True)
class Options:
    """Weights and switches of the loss."""

    lambda1: float = 0.0
    lambda2: float = 0.0
    self_completion: float = 0.0
    guidance: float = 0.0
    reconstruction: float = 0.0
    stop_gradient: bool = False
    detach_cue: bool = False
    cross_completion: bool = True
    concat: bool = False
    joint_masks: bool = True


@dataclass(frozen=True)
class Terms:
    """The loss of a batch by term, and each party's own objective beside it."""

    decision: Tensor
    dsalign1: Tensor
    dsalign2: Tensor
    self_completion: Tensor
    reconstruction: list[Tensor]

    def total(self) -> Tensor:
        """Add everything that is minimised."""
        shared = self.decision + self.dsalign1 + self.dsalign2 + self.self_completion
        return shared + total(self.reconstruction)


def total(terms: Sequence[Tensor]) -> Tensor:
    """Add terms, of which there may be none."""
    return sum(terms, torch.zeros((), dtype=torch.float64))


def mean(vectors: Sequence[Tensor]) -> Tensor:
    """Average one vector or more."""
    return total(vectors) / len(vectors)


def joined(parts: dict[int, Tensor], k: int, concat: bool) -> Tensor:
    """Make a head's input of some parties' vectors: their mean, or blocks with zeros between."""
    if not concat:
        return mean(list(parts.values()))
    nothing = torch.zeros_like(next(iter(parts.values())))
    return torch.cat([parts.get(i, nothing) for i in range(k)])


def cross_entropy(logits: Tensor, y: int) -> Tensor:
    """ℓ of one row; 0 for a row without label, −1."""
    if y == -1:
        return 0 * logits.sum()
    return -torch.log(torch.exp(logits[y]) / torch.exp(logits).sum())


def label_loss(out: Tensor, y: int | float) -> Tensor:
    """ℓ of one row: the cross-entropy of a class, or the squared error of a number."""
    if isinstance(y, int):
        return cross_entropy(out, y)
    return 0 * out.sum() if math.isnan(y) else (out[0] - y) ** 2


def guided_loss(out: Tensor, joint: Tensor, numbers: bool) -> Tensor:
    """ℓ of one row against what all parties together say: soft labels, or a number."""
    if numbers:
        return (out[0] - joint[0]) ** 2
    logs = joint.log_softmax(-1).tolist()
    return total([math.exp(log) * cross_entropy(out, c) for c, log in enumerate(logs)])


def mse(a: Tensor, b: Tensor) -> Tensor:
    """Mean over the classes of the squared difference."""
    return ((a - b) ** 2).sum() / len(a)


def merge(party: Party, x: Tensor, o: list[bool], rest: Tensor) -> Tensor:
    """o ⊙ x + (1 − o) ⊙ rest, a raw feature's mark standing for all its encoded columns."""
    kept = torch.tensor([o[feature] for feature in party.columns])
    return torch.where(kept, x, rest)


def embed(party: Party, x: Tensor, o: list[bool]) -> Tensor:
    """E_i = f_i(x_i), gaps neutral-filled."""
    return party.f(merge(party, x, o, torch.zeros_like(x)), o)


def embed_completed(party: Party, x: Tensor, o: list[bool], guess: Tensor) -> Tensor:
    """Ẽ_i = f_i(x̂_i): every raw feature is given now."""
    return party.f(merge(party, x, o, guess), [True] * len(o))


def sources(row: Row) -> list[int]:
    """M or, where it is empty, the parties that observed anything (D2)."""
    M = [i for i, full in enumerate(row.full) if full]
    return M or [i for i, o in enumerate(row.o) if any(o)]


def cue_of(row: Row, E: list[Tensor], party: int) -> Tensor | None:
    """Average E over the sources other than the party; None where there is none."""
    peers = [E[j] for j in sources(row) if j != party]
    return mean(peers) if peers else None


def cross_completed(
    parties: Sequence[Party], row: Row, E: list[Tensor], detach_cue: bool = False
) -> list[Tensor | None]:
    """Ẽ_i of every party that has a cue: whole where the row is aligned, else only the gaps."""
    made: list[Tensor | None] = []
    for i, party in enumerate(parties):
        cue = cue_of(row, E, i)
        if cue is None:
            made.append(None)
            continue
        guess = party.xcom(cue.detach() if detach_cue else cue)
        kept = [False] * len(row.o[i]) if all(row.full) else row.o[i]
        made.append(embed_completed(party, row.x[i], kept, guess))
    return made


def decision(
    head: Head, row: Row, E: list[Tensor], E_: list[Tensor | None], concat: bool = False
) -> Tensor:
    """Add the active cross-entropies of a row (eq. l_ce_aligned_non_aligned_k, D1, D2)."""
    k = len(E)
    M = [i for i in range(k) if row.full[i]]
    inputs = own_and_joint(M, E)
    if len(M) == k:
        for i in range(k):
            inputs.append({j: _there(E_)[j] if j == i else E[j] for j in range(k)})
    else:
        filled = [E[i] if i in M or E_[i] is None else E_[i] for i in range(k)]
        inputs.append(dict(enumerate(_there(filled))))
    return total([label_loss(head(joined(each, k, concat)), row.y) for each in inputs])


def together(
    head: Head, row: Row, E: list[Tensor], E_: list[Tensor | None], options: Options
) -> Tensor:
    """Decide with all: real where full, else completed; without completion, who saw anything."""
    k = len(E)
    if options.cross_completion:
        each = [E[i] if row.full[i] or E_[i] is None else E_[i] for i in range(k)]
        return head(joined(dict(enumerate(_there(each))), k, options.concat))
    saw = [i for i, o in enumerate(row.o) if any(o)]
    return head(joined({i: E[i] for i in saw}, k, options.concat))


def own_and_joint(M: list[int], E: list[Tensor]) -> list[dict[int, Tensor]]:
    """List who decides alone, and together where there are several."""
    inputs = [{i: E[i]} for i in M]
    return [*inputs, {i: E[i] for i in M}] if len(M) >= 2 else inputs


def decision_uncompleted(head: Head, row: Row, E: list[Tensor], concat: bool = False) -> Tensor:
    """Add the active cross-entropies of a row without cross completion: no two are the same."""
    M = [i for i, full in enumerate(row.full) if full]
    saw = [i for i, o in enumerate(row.o) if any(o)]
    inputs = own_and_joint(M, E)
    if sorted(set(M) | set(saw)) != M:
        inputs.append({i: E[i] for i in saw})
    return total([label_loss(head(joined(each, len(E), concat)), row.y) for each in inputs])


def dsalign(
    head: Head,
    row: Row,
    E: list[Tensor],
    E_: list[Tensor | None],
    stop_gradient: bool,
    concat: bool = False,
) -> tuple[Tensor, Tensor]:
    """Both alignment losses of a row (eq. DSAlign_1_k, DSAlign_2_k); 0 unless it is aligned."""
    first, second, k = [], [], len(E)
    if all(row.full):
        joint = head(joined(dict(enumerate(E)), k, concat))
        for i, (own, completed) in enumerate(zip(E, E_, strict=True)):
            real = head(joined({i: own}, k, concat))
            if completed is not None:
                made = head(joined({i: completed}, k, concat))
                first.append(mse(made, real.detach() if stop_gradient else real))
            second.append(mse(real, joint.detach() if stop_gradient else joint))
    return total(first), total(second)


def self_completed(party: Party, x: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Complete a masked row from its own embedding: the cue, X̃ and Ẽ."""
    cue = embed(party, x, mask)
    guess = party.xcom(cue)
    return cue, guess, embed_completed(party, x, mask, guess)


def loss(
    parties: Sequence[Party],
    head: Head,
    rows: Sequence[Row],
    options: Options,
    masks: Sequence[Sequence[list[list[bool]]]] = (),
) -> Terms:
    """Average every term over the batch; `masks[b][i]`: what copies of row b keep of party i's.

    Self completion counts a party's decision on each masked copy of a row, before and after it
    completes the copy from its own embedding; guidance holds the same decisions to what all parties
    together say. With joint masks, all parties also decide together, from each copy of each.
    """
    sums: list[list[Tensor]] = [[], [], [], [], []]
    for b, row in enumerate(rows):
        E = [embed(party, x, o) for party, x, o in zip(parties, row.x, row.o, strict=True)]
        concat, k = options.concat, len(parties)
        if options.cross_completion:
            E_ = cross_completed(parties, row, E, options.detach_cue)
            decided = decision(head, row, E, E_, concat)
        else:
            E_ = [None] * k
            decided = decision_uncompleted(head, row, E, concat)
        first, second = dsalign(head, row, E, E_, options.stop_gradient, concat)
        alone, guided = [], []
        if options.self_completion:
            said = together(head, row, E, E_, options).detach()
            for out in copies(parties, head, row, options, masks[b]):
                alone.append(label_loss(out, row.y))
                guided.append(guided_loss(out, said, isinstance(row.y, float)))
        found = (decided, first, second, total(alone), total(guided))
        for terms, term in zip(sums, found, strict=True):
            terms.append(row.weight * term)
    averages = [total(terms) / len(rows) for terms in sums]
    return Terms(
        averages[0],
        options.lambda1 * averages[1],
        options.lambda2 * averages[2],
        options.self_completion
        * ((1 - options.guidance) * averages[3] + options.guidance * averages[4]),
        [
            options.reconstruction * reconstruction(parties, rows, i, options, masks)
            for i in range(len(parties))
        ],
    )


def copies(
    parties: Sequence[Party],
    head: Head,
    row: Row,
    options: Options,
    masks: Sequence[list[list[bool]]],
    completing: bool = True,
) -> list[Tensor]:
    """Every decision from masked copies of a row, before and (if completing) after completion."""
    seen, k = [i for i in range(len(parties)) if any(row.o[i])], len(parties)
    found = []
    for copy in range(len(masks[0])):
        made = {i: self_completed(parties[i], row.x[i], masks[i][copy]) for i in seen}
        for kind in (0, 2) if completing else (0,):
            embedded = {i: each[kind] for i, each in made.items()}
            groups = [{i: each} for i, each in embedded.items()]
            groups += [embedded] if options.joint_masks and embedded else []
            found += [head(joined(group, k, options.concat)) for group in groups]
    return found


def masked_loss(
    parties: Sequence[Party],
    head: Head,
    rows: Sequence[Row],
    options: Options,
    masks: Sequence[Sequence[list[list[bool]]]],
) -> Tensor:
    """The loss of a step that completes nothing."""
    sums = [
        row.weight
        * total(
            [
                label_loss(out, row.y)
                for out in copies(parties, head, row, options, masks[b], completing=False)
            ]
        )
        for b, row in enumerate(rows)
    ]
    return options.self_completion * total(sums) / len(rows)


def reconstruction(
    parties: Sequence[Party],
    rows: Sequence[Row],
    i: int,
    options: Options,
    masks: Sequence[Sequence[list[list[bool]]]],
) -> Tensor:
    """Mean squared error of XCom_i over the cells its own party observed, for each kind of cue.

    Ours, not the paper's. A row without a peer to take a cue from counts with the cue 0. No
    gradient reaches the peers' embeddings.
    """
    party, errors, cells = parties[i], [], 0
    for b, row in enumerate(rows):
        E = [embed(each, x, o) for each, x, o in zip(parties, row.x, row.o, strict=True)]
        cue = cue_of(row, E, i)
        cue = torch.zeros_like(E[i]) if cue is None else cue
        guesses = []
        if options.cross_completion:
            guesses.append(party.xcom(cue.detach()))
        if options.self_completion:
            guesses += [self_completed(party, row.x[i], mask)[1] for mask in masks[b][i]]
        for column, feature in enumerate(party.columns):
            if row.o[i][feature]:
                cells += 1
                real = row.x[i][column].detach()
                errors += [(guess[column] - real) ** 2 for guess in guesses]
    return total(errors) / max(cells, 1)


def two_clients(
    a: Party, b: Party, head: Head, row: Row, lambda1: float, lambda2: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One row's loss for two clients, written out from the paper's main text.

    eq. vfl_xcom, l_ce_aligned_non_aligned, DSAlign_1, DSAlign_2; their sum is eq. overall. One of
    the clients, or both, must hold the row in full.
    """
    nothing = torch.zeros((), dtype=torch.float64)
    y, (x_a, x_b), (o_a, o_b) = int(row.y), row.x, row.o
    E_a, E_b = embed(a, x_a, o_a), embed(b, x_b, o_b)
    X_a, X_b = a.xcom(E_b), b.xcom(E_a)
    if row.full == [True, True]:
        E_a_, E_b_ = a.f(X_a, [True] * len(o_a)), b.f(X_b, [True] * len(o_b))
        joint = (E_a + E_b) / 2
        decided = (
            cross_entropy(head(E_a), y)
            + cross_entropy(head(E_b), y)
            + cross_entropy(head(joint), y)
            + cross_entropy(head((E_a + E_b_) / 2), y)
            + cross_entropy(head((E_a_ + E_b) / 2), y)
        )
        first = mse(head(E_a_), head(E_a)) + mse(head(E_b_), head(E_b))
        second = mse(head(E_a), head(joint)) + mse(head(E_b), head(joint))
        return decided, lambda1 * first, lambda2 * second
    if row.full == [True, False]:
        E_b_ = b.f(merge(b, x_b, o_b, X_b), [True] * len(o_b))
        decided = cross_entropy(head(E_a), y) + cross_entropy(head((E_a + E_b_) / 2), y)
        return decided, nothing, nothing
    assert row.full == [False, True]
    E_a_ = a.f(merge(a, x_a, o_a, X_a), [True] * len(o_a))
    decided = cross_entropy(head(E_b), y) + cross_entropy(head((E_a_ + E_b) / 2), y)
    return decided, nothing, nothing


def _there(vectors: Sequence[Tensor | None]) -> list[Tensor]:
    found = [vector for vector in vectors if vector is not None]
    assert len(found) == len(vectors)
    return found

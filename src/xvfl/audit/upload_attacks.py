"""Attacks of a coordinator on a party's upload: columns from embeddings. Needs torch only.

All functions take stored views and true columns, on any device, and return what each attack
reaches beside a control with shuffled columns.
Shapes: n rows, c masked copies, d embedding width, q columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from xvfl.audit.components import independent_directions, principal_directions
from xvfl.audit.decoders import best_guess, net_guesses, ridge_guesses, standardized
from xvfl.audit.recovery import (
    Columns,
    Measured,
    by_kind,
    explained,
    score_components,
    score_guess,
)
from xvfl.primitives.random import named_generator


@dataclass(frozen=True)
class AttackOptions:
    """Strength of the attacks."""

    known_rows: tuple[int, ...] = (10, 20, 50, 200)
    """Numbers of rows whose columns the attacker knows."""
    draws: int = 3
    """Random draws of the known rows; results are averaged over them."""
    max_rows: int = 4000
    """Largest number of rows that are attacked; a larger table is sampled."""
    max_components: int = 128
    """Largest number of components, and of clusters."""
    max_differences: int = 32_000
    """Largest number of differences between rows and masked copies that are analyzed."""
    inversion_rows: int = 64
    inversion_steps: int = 40
    random_state: int = 0

    def generator(self, *name: str) -> torch.Generator:
        """Return a random generator for one attack."""
        return named_generator("cpu", self.random_state, "audit", *name)


def attack_upload(
    views: Tensor, columns: Columns, options: AttackOptions | None = None
) -> list[Measured]:
    """Run every attack that needs the upload alone, or the upload and known rows.

    Parameters
    ----------
    views : Tensor of shape (n, 1 + c, d)
        The stored embeddings of each row: as observed, then its masked copies.
    columns : Columns
        The true columns of the same rows.
    options : AttackOptions, optional
        Strength of the attacks.

    Returns
    -------
    list of Measured
        Without known rows: `ICA` and `PCA` on plain embeddings, `differences, ICA` and
        `differences, clusters` on those of masked copies. With known rows: `decoder, 10 rows` etc.
    """
    options = options or AttackOptions()
    views, columns = sample_rows(views, columns, options)
    views = views.float()
    return [
        *component_attacks(views[:, 0], columns, options),
        *difference_attacks(views, columns, options),
        *decoder_attacks(_inputs(views), columns, options),
    ]


def sample_rows(views: Tensor, columns: Columns, options: AttackOptions) -> tuple[Tensor, Columns]:
    """Sample at most `max_rows` rows."""
    if len(columns) <= options.max_rows:
        return views, columns
    order = torch.randperm(len(columns), generator=options.generator("rows"))
    rows = order[: options.max_rows].to(views.device)
    return views[rows], columns.take(rows)


def _inputs(views: Tensor) -> list[Tensor]:
    """Return what decoders read: the plain embedding, or the mean of all views."""
    plain = standardized(views[:, 0])
    return [plain] if views.shape[1] == 1 else [plain, standardized(views.mean(1))]


def component_attacks(
    plain: Tensor, columns: Columns, options: AttackOptions, title: str = ""
) -> list[Measured]:
    """Recover columns as independent and as principal components. No row is known."""
    independent = plain @ _independent(plain, columns, options)
    principal = (plain - plain.mean(0)) @ principal_directions(plain, options.max_components)
    return [
        *score_components(f"{title}ICA", independent, columns, options.generator("control")),
        *score_components(f"{title}PCA", principal, columns, options.generator("control")),
    ]


def _independent(x: Tensor, columns: Columns, options: AttackOptions) -> Tensor:
    """Return independent directions for several numbers of components side by side. (d, m)

    The best number of components depends on the net. An attacker can try several, near the number
    of columns.
    """
    q, most, rng = columns.values.shape[1], options.max_components, options.generator("ICA")
    counts = sorted({min(count, most) for count in (q, 3 * q)})
    return torch.cat([independent_directions(x, count, rng) for count in counts], 1)


def difference_attacks(views: Tensor, columns: Columns, options: AttackOptions) -> list[Measured]:
    """Recover columns from differences between a row and its masked copies. No row is known.

    A copy lacks some features. If it lacks only one, the difference has the direction of this
    feature, and the projection of the plain embedding on it shows the feature's value. `ICA` finds
    the directions as independent components of all differences, `clusters` as recurring directions
    of the shortest ones.
    """
    if views.shape[1] == 1:
        return []
    plain = views[:, 0]
    differences = (plain.unsqueeze(1) - views[:, 1:]).flatten(0, 1)
    length = differences.norm(dim=1)
    # Without copies that keep all features.
    differences = differences[length > 1e-3 * length.max()]
    if len(differences) < views.shape[2]:
        return []
    rng = options.generator("differences")
    order = torch.randperm(len(differences), generator=rng).to(plain.device)
    differences = differences[order[: options.max_differences]]
    unmixed = plain @ _independent(differences, columns, options)
    n_columns = columns.values.shape[1]
    k = min(2 * n_columns, options.max_components)
    directions = recurring_directions(differences, n_columns, k, rng)
    whitening = principal_directions(plain, options.max_components)
    # Along a direction, and along it where the variation of the other directions is suppressed.
    filtered = plain @ whitening @ (whitening.T @ directions.T)
    found = torch.cat([plain @ directions.T, filtered], 1)
    return [
        *score_components("differences, ICA", unmixed, columns, options.generator("control")),
        *score_components("differences, clusters", found, columns, options.generator("control")),
    ]


def recurring_directions(
    differences: Tensor, n_columns: int, k: int, rng: torch.Generator, iterations: int = 20
) -> Tensor:
    """Cluster the directions of the shortest differences, up to their sign. (k, d)"""
    length = differences.norm(dim=1)
    share = min(0.3, 3 / n_columns)
    count = min(max(int(share * len(length)), 8 * k), len(length))
    unit = torch.nn.functional.normalize(differences[length.argsort()[:count]], dim=1)
    start = torch.randperm(count, generator=rng)[:k].to(unit.device)
    centers = unit[start]
    for _ in range(iterations):
        cosine = unit @ centers.T
        nearest = cosine.abs().argmax(1)
        sign = cosine.gather(1, nearest.unsqueeze(1)).sign()
        total = torch.zeros_like(centers).index_add_(0, nearest, unit * sign)
        moved = torch.nn.functional.normalize(total, dim=1)
        centers = torch.where(total.norm(dim=1, keepdim=True) > 1e-6, moved, centers)
    return centers


def decoder_attacks(
    inputs: Sequence[Tensor],
    columns: Columns,
    options: AttackOptions,
    title: str = "decoder, ",
    nets: bool = True,
) -> list[Measured]:
    """Learn to decode columns from known rows; score the other rows, for each number of known rows.

    The decoder that is best for the attacker counts: ridge regression on each of the inputs (n, d),
    and with `nets` a net with one hidden layer on the first input, for the first draw only.
    """
    targets = columns, columns.shuffled(options.generator("control"))
    counts = [count for count in options.known_rows if count <= len(columns) // 2]
    device, seed = inputs[0].device, options.random_state
    orders = [_order(len(columns), options, draw, device) for draw in range(options.draws)]
    by_nets: list[list[Tensor]] = [[], []]
    if nets and counts:
        known = [orders[0][:count] for count in counts]
        by_nets = net_guesses(inputs[0], targets, known, seed)
    measured = []
    for place, count in enumerate(counts):
        reached = []
        for target, of_nets in zip(targets, by_nets, strict=True):
            more = [of_nets[place : place + 1], *([] for _ in orders[1:])]
            pairs = zip(orders, more, strict=True)
            decoded = [_decode(inputs, target, order, count, each) for order, each in pairs]
            rho, r2 = zip(*decoded, strict=True)
            reached.append((torch.stack(rho).mean(0), sum(r2) / len(r2)))
        (found, found_r2), (control, control_r2) = reached
        name = f"{title}{count} rows"
        measured += by_kind(name, found, control, columns)
        if bool(columns.numeric.any()):
            measured.append(Measured(name, "R²", found_r2, control_r2))
    return measured


def _decode(
    inputs: Sequence[Tensor], columns: Columns, order: Tensor, count: int, more: list[Tensor]
) -> tuple[Tensor, float]:
    """Learn from the first `count` rows; return |ρ| of each column (q,) and R² of the others.

    `more` are guesses (n, q) by other decoders.
    """
    known, rest = order[:count], order[count:]
    guesses = [guess for x in inputs for guess in ridge_guesses(x, columns, known)] + more
    guess, scored = best_guess(guesses, columns, rest)[rest], columns.take(rest)
    return score_guess(scored, guess), explained(scored, guess) or 0.0


def _order(n: int, options: AttackOptions, draw: int, device: torch.device) -> Tensor:
    return torch.randperm(n, generator=options.generator("known", str(draw))).to(device)


def collusion_attacks(
    views: Tensor, columns: Columns, options: AttackOptions | None = None
) -> list[Measured]:
    """Let the coordinator collude with a party that holds half of the columns.

    `shared columns`: the peer holds half of the rows; a decoder learns from them to read the shared
    columns of the other rows. `other columns, 0 rows`: what the shared columns explain is removed
    from the embeddings, and the residual is separated by ICA. `other columns, 200 rows`: a decoder
    takes embeddings and shared columns and learns from known rows; `without the upload`: it takes
    the shared columns alone.
    """
    options = options or AttackOptions()
    views, columns = sample_rows(views, columns, options)
    order = torch.randperm(columns.values.shape[1], generator=options.generator("shared"))
    half = len(order) // 2
    if half == 0:
        return []
    shared, others = (
        columns.select(part.to(views.device)) for part in (order[:half], order[half:])
    )
    plain = standardized(views[:, 0].float())
    every = torch.arange(len(columns), device=views.device)
    held = torch.cat([shared.filled(every), shared.observed.double()], 1)
    held = standardized(held).float()
    rest = unexplained(plain, held)
    directions = _independent(rest, others, options)
    control = options.generator("control")
    thousands = replace(options, known_rows=(len(columns) // 2,), draws=1)
    few = replace(options, known_rows=options.known_rows[-1:])
    both = torch.cat([plain, held], 1)
    by_thousands = decoder_attacks([plain], shared, thousands, nets=False)
    title = "collusion, other columns, "
    return [
        *(replace(each, attack="collusion, shared columns") for each in by_thousands),
        *score_components(f"{title}0 rows", rest @ directions, others, control),
        *decoder_attacks([both, plain], others, few, title, nets=False),
        *decoder_attacks([held], others, few, f"{title}without the upload, ", nets=False),
    ]


def unexplained(x: Tensor, given: Tensor) -> Tensor:
    """Return the residual of x (n, d) after a linear regression on standardized inputs (n, q)."""
    inputs, size = given.double(), given.shape[1]
    gram = inputs.T @ inputs + torch.eye(size, dtype=torch.float64, device=x.device)
    fitted: Tensor = inputs @ torch.linalg.solve(gram, inputs.T @ x.double())
    return (x - fitted).to(x.dtype)


def two_version_attacks(
    first: Tensor, second: Tensor, columns: Columns, options: AttackOptions | None = None
) -> list[Measured]:
    """Attack plain embeddings of the same rows by two versions of the encoder together."""
    options = options or AttackOptions()
    both = torch.stack([first[:, 0], second[:, 0]], 1)
    both, columns = sample_rows(both, columns, options)
    joined = standardized(both.float().flatten(1))
    title = "two versions, "
    return [
        *component_attacks(joined, columns, options, title),
        *decoder_attacks([joined], columns, options, title, nets=False),
    ]

"""The paper's convergence theory, checked on `known_problem`, and PAGE against SGD in rounds.

Sampling error. An expectation is estimated by a mean over R independent repetitions with standard
error s. A theorem counts as confirmed only if mean + 4s is below its bound at every T. The lemma is
an equality up to the curvature of L, tighter than any s, so its left side is also computed in
closed form (`lemma_left`) and the sampled one is compared with that. Rounds are counted in favor of
SGD: PAGE has reached ε² when mean + 3s ≤ ε², SGD already when mean - 3s ≤ ε².
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise

import numpy as np
import torch

from xvfl.training.page import PagePlan
from xvfl_lab.experiments.known_problem import (
    Estimate,
    Moment,
    Problem,
    draw_pages,
    float64,
    lemma_bound,
    lemma_left,
    lemma_sampled,
    page,
    page_bound,
    run_page,
    run_sgd,
    sgd_bound,
)

REPETITIONS = 64
MANY_REPETITIONS = 4096
"""For the counterexample, whose average has a heavy tail; violated means mean - 4s > bound."""
MARGIN = 4.0
"""Standard errors added to a mean before it is compared with a bound."""
TILT = 3.0
"""Standard errors by which the comparison favors SGD and disfavors PAGE."""


SMOOTH = Problem()
"""The problem of the comparison."""
ROUGH = Problem(noise=1.0, roughness=10.0, start=0.1)
"""A problem whose β is dominated by the samples, νκ = 10 against a + c = 1.5."""


@dataclass(frozen=True)
class Check:
    """The ratio of a measured quantity to its bound; above 1 the bound is violated."""

    name: str
    step_size: float
    nearest: float


def nearest(
    averages: Iterator[Estimate],
    bound: Callable[[float], float],
    rounds: int,
    margin: float = MARGIN,
) -> float:
    """Return the largest (mean + margin s)/bound(T) over T = 1 .. rounds."""
    shifted = (float(average.shifted(margin)) for average in islice(averages, rounds))
    return max(value / bound(t) for t, value in enumerate(shifted, start=1))


def check_sgd(problem: Problem, b: int, step_size: float, rounds: int, seed: int) -> Check:
    """Compare SGD with Theorem thm:sgd at every T up to rounds."""
    averages = run_sgd(problem, [step_size], b, REPETITIONS, seed)
    bound = partial(sgd_bound, problem, step_size, b)
    return Check(f"Theorem 1, b={b}", step_size, nearest(averages, bound, rounds))


def check_page(problem: Problem, plan: PagePlan, step_size: float, rounds: int, seed: int) -> Check:
    """Compare PAGE with Theorem thm:page at every T up to rounds."""
    averages = run_page(problem, [step_size], plan, REPETITIONS, seed)
    bound = partial(page_bound, problem, step_size, plan)
    name = f"Theorem 2, b={plan.b}, b'={plan.b_small}"
    return Check(name, step_size, nearest(averages, bound, rounds))


def moments(problem: Problem, plan: PagePlan, rng: torch.Generator) -> Iterator[Moment]:
    """Yield the quantities that the lemma conditions on, along one run of PAGE, t = 1, 2, ..."""
    eta = plan.largest_step_size(problem.smoothness)
    draws = draw_pages(plan, 1, problem.d, rng)
    run = page(problem, problem.starts(1, 1), float64([eta]), draws)
    for previous, theta in pairwise(iterate[0, 0] for iterate in run):
        yield Moment(theta, previous, (previous - theta) / eta)


def check_lemma(problem: Problem, plan: PagePlan, rounds: int, seed: int) -> Check:
    """Compare the two sides of the lemma at every t up to rounds of one run."""
    run = islice(moments(problem, plan, torch.Generator().manual_seed(seed)), rounds)
    ratios = [lemma_left(problem, plan, at) / lemma_bound(problem, plan, at) for at in run]
    name = f"lemma, b={plan.b}, b'={plan.b_small}"
    return Check(name, plan.largest_step_size(problem.smoothness), max(ratios))


def lemma_deviation(problem: Problem, plan: PagePlan, rounds: int, draws: int, seed: int) -> float:
    """Return the largest distance of the sampled side from the closed form, in standard errors."""
    rng = torch.Generator().manual_seed(seed)
    run = list(islice(moments(problem, plan, rng), rounds))
    steps = islice(draw_pages(plan, draws, problem.d, rng), 1, rounds + 1)
    pairs = [
        (lemma_sampled(problem, at, draw), lemma_left(problem, plan, at))
        for at, draw in zip(run, steps, strict=True)
    ]
    return max(float(abs(sampled.mean - left) / sampled.error) for sampled, left in pairs)


def checks(problem: Problem, b: int, rounds: int = 1000, seed: int = 0) -> list[Check]:
    """Check both theorems and the lemma within the step sizes of the proofs."""
    beta = problem.smoothness
    plans = (PagePlan.default(b), PagePlan.default(b, b_small=2))
    return [
        *(check_sgd(problem, 30, share / beta, rounds, seed) for share in (1.0, 0.1)),
        *(check_page(problem, p, p.largest_step_size(beta), rounds, seed) for p in plans),
        *(check_lemma(problem, plan, rounds, seed) for plan in plans),
    ]


def counterexample(rounds: int = 1000, seed: int = 0) -> list[Check]:
    """Run PAGE with b' < √b at the theorem's η = 1/(2β), which violates the bound, and the proof's.

    A correction adds a variance of nearly (βη)²‖g‖²/b': with b' = 1 a quarter of ‖g‖² each step,
    until the next fresh gradient, 1/p = 2501 steps away.
    """
    plan = PagePlan.default(2500, b_small=1)
    stated, proven = 1 / (2 * ROUGH.smoothness), plan.largest_step_size(ROUGH.smoothness)
    averages = run_page(ROUGH, [stated], plan, MANY_REPETITIONS, seed)
    least = nearest(averages, partial(page_bound, ROUGH, stated, plan), rounds, -MARGIN)
    broken = Check("Theorem 2, mean - 4s", stated, least)
    return [broken, check_page(ROUGH, plan, proven, rounds, seed)]


@dataclass(frozen=True)
class RoundsToTarget:
    """First round at which the average reaches ε², at the best step size of the grid."""

    b: int
    rounds: int
    step_size: float
    gradients: float
    """Gradient evaluations up to then, in expectation."""
    promised: float
    """Rounds after which the theorem's bound reaches ε²."""


@dataclass(frozen=True)
class Row:
    """PAGE against SGD of equal work per round, and against SGD with one b for every ε."""

    epsilon: float
    page: RoundsToTarget
    sgd: RoundsToTarget
    fixed: RoundsToTarget

    @property
    def ratio(self) -> float:
        """Rounds of SGD of equal work per round for each of PAGE's."""
        return self.sgd.rounds / self.page.rounds


EPSILONS = (1.0, 0.7, 0.45)
STEP_SIZES = [2 ** (half / 2) / SMOOTH.smoothness for half in range(-10, 3)]
"""The grid of both algorithms, from 1/(32β) to 2/β."""
MOST_ROUNDS = 40_000


def table(epsilons: tuple[float, ...] = EPSILONS, seed: int = 0) -> list[Row]:
    """Count rounds until (1/T) Σ_{t<T} E‖∇L(θ^t)‖² ≤ ε², PAGE with the theorem's b = 2σ²/ε²."""
    plans = [PagePlan.default(math.ceil(2 * SMOOTH.variance / e**2)) for e in epsilons]
    work = [math.ceil(plan.gradients_per_step) for plan in plans]
    return [
        Row(e, reach_page(plan, e, seed), reach_sgd(b, e, seed), reach_sgd(work[0], e, seed))
        for e, plan, b in zip(epsilons, plans, work, strict=True)
    ]


def reach_sgd(b: int, epsilon: float, seed: int) -> RoundsToTarget:
    """Count the rounds of SGD at its best step size, with the margin in its favor."""
    averages = run_sgd(SMOOTH, STEP_SIZES, b, REPETITIONS, seed)
    rounds, best = first_below(averages, epsilon**2, -TILT)
    promises = [promised(partial(sgd_bound, SMOOTH, eta, b), epsilon) for eta in STEP_SIZES]
    return RoundsToTarget(b, rounds, STEP_SIZES[best], rounds * b, min(promises))


def reach_page(plan: PagePlan, epsilon: float, seed: int) -> RoundsToTarget:
    """Count the rounds of PAGE at its best step size, with the margin against it."""
    averages = run_page(SMOOTH, STEP_SIZES, plan, REPETITIONS, seed)
    rounds, best = first_below(averages, epsilon**2, TILT)
    gradients = plan.b + (rounds - 1) * plan.gradients_per_step
    proven = plan.largest_step_size(SMOOTH.smoothness)
    promise = promised(partial(page_bound, SMOOTH, proven, plan), epsilon)
    return RoundsToTarget(plan.b, rounds, STEP_SIZES[best], gradients, promise)


def first_below(averages: Iterable[Estimate], target: float, margin: float) -> tuple[int, int]:
    """Return the first T at which a step size has mean + margin s ≤ target, and its index."""
    for rounds, average in enumerate(islice(averages, MOST_ROUNDS), start=1):
        value, best = average.shifted(margin).min(0)
        if value <= target:
            return rounds, int(best)
    raise RuntimeError(f"no step size brought the average to {target} in {MOST_ROUNDS} rounds")


def promised(bound: Callable[[float], float], epsilon: float) -> float:
    """Return the smallest T with bound(T) ≤ ε², for a bound A/T + B; ∞ if B ≥ ε²."""
    floor = bound(math.inf)
    if floor >= epsilon**2:
        return math.inf
    return math.ceil((bound(1.0) - floor) / (epsilon**2 - floor))


def exponent(epsilons: list[float], rounds: list[int]) -> float:
    """Fit q of rounds ∝ ε^-q by least squares on the logarithms."""
    return float(-np.polyfit(np.log(epsilons), np.log(rounds), 1)[0])


def describe(rows: list[Row]) -> str:
    """Lay out rows as text, three lines to an ε, then the exponents."""
    lines = ["   ε  algorithm           b  rounds  promised     ηβ  gradients  rounds/PAGE"]
    for row in rows:
        named = {"PAGE": row.page, "SGD, equal work": row.sgd, "SGD, fixed b": row.fixed}
        lines += [
            f"{row.epsilon:4}  {name:<15} {r.b:5} {r.rounds:7} {r.promised:9.0f}"
            f" {r.step_size * SMOOTH.smoothness:6.3f} {r.gradients:10.0f}"
            f" {r.rounds / row.page.rounds:12.2f}"
            for name, r in named.items()
        ]
    epsilons = [row.epsilon for row in rows]
    columns = zip(*((row.page, row.sgd, row.fixed) for row in rows), strict=True)
    fits = [exponent(epsilons, [reached.rounds for reached in each]) for each in columns]
    lines.append("rounds ∝ ε^-q, q = {:.2f} PAGE, {:.2f} equal work, {:.2f} fixed b".format(*fits))
    return "\n".join(lines)


def main() -> None:
    """Print the checks of the bounds and the table of rounds."""
    torch.set_num_threads(1)
    print("measured/bound, largest over T ≤ 1000 (theorems: mean + 4 standard errors)")
    for title, results in (
        ("smooth problem", checks(SMOOTH, 900)),
        ("rough problem", checks(ROUGH, 100)),
        ("rough problem, b' < √b: η = 1/(2β), then the proof's", counterexample()),
    ):
        print(title)
        for check in results:
            print(f"  {check.name:<26} η={check.step_size:<8.5f} {check.nearest:10.3f}")
    deviation = lemma_deviation(ROUGH, PagePlan.default(100), rounds=100, draws=4000, seed=0)
    print(f"lemma sampled 100 times, largest deviation {deviation:.1f} standard errors")
    print(f"\nrounds to an average ‖∇L‖² of ε²\n{describe(table())}")


if __name__ == "__main__":
    main()

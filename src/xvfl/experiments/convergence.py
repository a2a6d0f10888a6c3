"""
The paper's convergence theory, checked on a problem whose constants are known exactly.

Theorems thm:sgd and thm:page and the lemma eq. variance-reduce, with the problem

    L(θ) = Σ_j a θ_j²/2 + c (1 - cos θ_j),     L* = L(0) = 0,  so  Δ_0 = L(θ^0);
    a sample ξ is two independent fair signs s_j, r_j = ±1 per coordinate;
    its loss adds Σ_j (ν/κ)(r_j sin κθ_j - s_j cos κθ_j),
    its gradient adds ν(s_j sin κθ_j + r_j cos κθ_j).

L is nonconvex for c > a: its curvature a + c cos θ_j falls to a - c. The constants, x, y being
the j-th coordinates of any two points:

    σ (asp:bv)          E[(s sin κx + r cos κx)²] = sin² + cos² = 1, so σ² = dν² at every θ.
    β (asp:avgsmooth)   the added part has mean 0, so the square of the gradient difference splits:
                        E‖·‖² = ‖∇L(x) - ∇L(y)‖² + Σ_j 2ν²(1 - cos κ(x_j - y_j))
                              ≤ ((a + c)² + (νκ)²)‖x - y‖²,
                        with equality in the limit x, y → 0, so β² = (a + c)² + (νκ)² is the least.
    a minibatch of b    the mean of b samples is the mean of their signs, (2 Binomial(b, ½) - b)/b:
                        exact at any b for the price of one draw; its variance is σ²/b.

Sampling error. An expectation is a mean over R independent repetitions, known up to its standard
error s. A theorem counts as holding only if mean + 4s lies under its bound, at every T: many checks
make this stricter, never laxer. The lemma is an equality up to the curvature of L, closer than any
s, so its left side is also known in closed form (`lemma_left`) and the sampled one is compared with
that. Rounds are counted against the claim that PAGE needs fewer: PAGE has arrived when
mean + 3s ≤ ε², SGD already when mean - 3s ≤ ε².

Shapes: G step sizes, R repetitions, d coordinates; iterates are [G, R, d], signs are [2, R, d].
Every step size sees the same draws.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise

import numpy as np
import torch
from torch import Tensor

from xvfl.federation.page import PagePlan

REPETITIONS = 64
MARGIN = 4.0
"""Standard errors on top of a mean before it is held against a bound."""
TILT = 3.0
"""Standard errors by which the comparison favours SGD and disfavours PAGE."""


@dataclass(frozen=True)
class Problem:
    """Hold a, c, ν, κ and θ^0 (the same in all d coordinates) of the module's problem."""

    bowl: float = 0.5
    ripple: float = 1.0
    noise: float = 10.0
    roughness: float = 0.08
    start: float = 3.0
    d: int = 4

    @property
    def smoothness(self) -> float:
        """β, the least constant of average smoothness."""
        return math.hypot(self.bowl + self.ripple, self.noise * self.roughness)

    @property
    def variance(self) -> float:
        """σ², the variance of one sample's gradient at every θ."""
        return self.d * self.noise**2

    @property
    def gap(self) -> float:
        """Δ_0 = L(θ^0) - L*."""
        return float(self.loss(self.starts()))

    def starts(self, *shape: int) -> Tensor:
        """θ^0, repeated."""
        return torch.full((*shape, self.d), self.start, dtype=torch.float64)

    def loss(self, theta: Tensor) -> Tensor:
        """L(θ), summed over the last axis."""
        return (self.bowl * theta**2 / 2 + self.ripple * (1 - theta.cos())).sum(-1)

    def gradient(self, theta: Tensor) -> Tensor:
        """∇L(θ)."""
        return self.bowl * theta + self.ripple * theta.sin()

    def minibatch_loss(self, theta: Tensor, signs: Tensor) -> Tensor:
        """Loss of the minibatch with these mean signs; minibatch_gradient is its gradient."""
        s, r = signs.unbind()
        phase = self.roughness * theta
        part = self.noise / self.roughness * (r * phase.sin() - s * phase.cos())
        return self.loss(theta) + part.sum(-1)

    def minibatch_gradient(self, theta: Tensor, signs: Tensor) -> Tensor:
        """∇L(θ) seen through the minibatch with these mean signs."""
        s, r = signs.unbind()
        phase = self.roughness * theta
        return self.gradient(theta) + self.noise * (s * phase.sin() + r * phase.cos())


@dataclass(frozen=True)
class PageDraw:
    """Randomness of one PAGE step: the coins [R, 1] and the signs of both minibatches."""

    fresh: Tensor
    big: Tensor
    small: Tensor


@dataclass(frozen=True)
class Estimate:
    """A mean over independent repetitions and its standard error."""

    mean: Tensor
    error: Tensor

    @classmethod
    def of(cls, repetitions: Tensor) -> "Estimate":
        """Reduce the last axis."""
        count = repetitions.shape[-1]
        return cls(repetitions.mean(-1), repetitions.std(-1) / math.sqrt(count))

    def shifted(self, margin: float) -> Tensor:
        """Give the mean moved by so many standard errors."""
        return self.mean + margin * self.error


def draw_signs(b: int, repetitions: int, d: int, rng: torch.Generator) -> Tensor:
    """Draw the mean signs [2, R, d] of one minibatch of b samples per repetition."""
    count = torch.full((2, repetitions, d), float(b), dtype=torch.float64)
    heads = torch.binomial(count, torch.full_like(count, 0.5), generator=rng)
    return 2 * heads / b - 1


def draw_minibatches(b: int, repetitions: int, d: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Draw the minibatches of SGD, without end."""
    while True:
        yield draw_signs(b, repetitions, d, rng)


def draw_pages(
    plan: PagePlan, repetitions: int, d: int, rng: torch.Generator
) -> Iterator[PageDraw]:
    """Draw the steps of PAGE, without end; the first is fresh, since g^0 is a minibatch of b."""
    p = 1.0
    while True:
        coins = torch.rand(repetitions, 1, dtype=torch.float64, generator=rng)
        big = draw_signs(plan.b, repetitions, d, rng)
        yield PageDraw(coins < p, big, draw_signs(plan.b_small, repetitions, d, rng))
        p = plan.p


def sgd(
    problem: Problem, start: Tensor, step_sizes: Tensor, minibatches: Iterable[Tensor]
) -> Iterator[Tensor]:
    """Yield θ^0, θ^1, ... of SGD, one [G, R, d] per minibatch."""
    theta = start
    for signs in minibatches:
        yield theta
        theta = theta - step_sizes[:, None, None] * problem.minibatch_gradient(theta, signs)


def page(
    problem: Problem, start: Tensor, step_sizes: Tensor, draws: Iterable[PageDraw]
) -> Iterator[Tensor]:
    """Yield θ^0, θ^1, ... of PAGE, one [G, R, d] per draw."""
    theta, previous, g = start, start, torch.zeros_like(start)
    for draw in draws:
        yield theta
        g = page_estimator(problem, theta, previous, g, draw)
        previous, theta = theta, theta - step_sizes[:, None, None] * g


def page_estimator(
    problem: Problem, theta: Tensor, previous: Tensor, g: Tensor, draw: PageDraw
) -> Tensor:
    """g^t from θ^t, θ^{t-1} and g^{t-1} (eq. pageupdate)."""
    fresh = problem.minibatch_gradient(theta, draw.big)
    here = problem.minibatch_gradient(theta, draw.small)
    there = problem.minibatch_gradient(previous, draw.small)
    return torch.where(draw.fresh, fresh, g + here - there)


def running_averages(problem: Problem, iterates: Iterable[Tensor]) -> Iterator[Estimate]:
    """Estimate the theorems' (1/T) Σ_{t<T} E‖∇L(θ^t)‖², [G], for T = 1, 2, ..."""
    total: Tensor | float = 0.0
    for rounds, theta in enumerate(iterates, start=1):
        total = total + problem.gradient(theta).square().sum(-1)
        yield Estimate.of(total / rounds)


def sgd_bound(problem: Problem, step_size: float, b: int, rounds: float) -> float:
    """Right side of Theorem thm:sgd for minibatches of b; void (∞) from η = 2/β on."""
    if step_size >= 2 / problem.smoothness:
        return math.inf
    descent = step_size - problem.smoothness * step_size**2 / 2
    noise = problem.smoothness * step_size**2 * problem.variance / b
    return problem.gap / (descent * rounds) + noise / (2 * descent)


def page_bound(problem: Problem, step_size: float, plan: PagePlan, rounds: float) -> float:
    """Right side of Theorem thm:page; proven for η ≤ plan.largest_step_size(β)."""
    floor = problem.variance / plan.b
    return 2 * problem.gap / (step_size * rounds) + floor / (plan.p * rounds) + floor


@dataclass(frozen=True)
class Moment:
    """θ^t, θ^{t-1} and g^{t-1}, each [d]: what the lemma conditions on."""

    theta: Tensor
    previous: Tensor
    g: Tensor


def lemma_bound(problem: Problem, plan: PagePlan, at: Moment) -> float:
    """Right side of eq. variance-reduce."""
    before = (at.g - problem.gradient(at.previous)).square().sum()
    moved = problem.smoothness**2 / plan.b_small * (at.theta - at.previous).square().sum()
    return float((1 - plan.p) * (before + moved) + plan.p * problem.variance / plan.b)


def lemma_left(problem: Problem, plan: PagePlan, at: Moment) -> float:
    """
    Left side of eq. variance-reduce, E_t‖g^t - ∇L(θ^t)‖², in closed form.

    The sum for β less its first part, over b': variance instead of second moment.
    """
    before = (at.g - problem.gradient(at.previous)).square().sum()
    half = problem.roughness * (at.theta - at.previous) / 2
    moved = 4 * problem.noise**2 / plan.b_small * half.sin().square().sum()
    return float((1 - plan.p) * (before + moved) + plan.p * problem.variance / plan.b)


def lemma_sampled(problem: Problem, at: Moment, draw: PageDraw) -> Estimate:
    """Left side of eq. variance-reduce as the mean over the R repetitions of one draw."""
    after = page_estimator(problem, at.theta, at.previous, at.g, draw)
    return Estimate.of((after - problem.gradient(at.theta)).square().sum(-1))


def run_sgd(
    problem: Problem, step_sizes: list[float], b: int, repetitions: int, seed: int
) -> Iterator[Estimate]:
    """Yield the running averages of SGD with minibatches of b."""
    draws = draw_minibatches(b, repetitions, problem.d, torch.Generator().manual_seed(seed))
    start = problem.starts(len(step_sizes), repetitions)
    return running_averages(problem, sgd(problem, start, _float64(step_sizes), draws))


def run_page(
    problem: Problem, step_sizes: list[float], plan: PagePlan, repetitions: int, seed: int
) -> Iterator[Estimate]:
    """Yield the running averages of PAGE."""
    draws = draw_pages(plan, repetitions, problem.d, torch.Generator().manual_seed(seed))
    start = problem.starts(len(step_sizes), repetitions)
    return running_averages(problem, page(problem, start, _float64(step_sizes), draws))


def _float64(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


SMOOTH = Problem()
"""The problem of the comparison."""
ROUGH = Problem(noise=1.0, roughness=10.0, start=0.1)
"""A problem whose β is nearly all in the samples, νκ = 10 against a + c = 1.5."""


@dataclass(frozen=True)
class Check:
    """How near a measured quantity comes to its bound: 1 is touching it, more is breaking it."""

    name: str
    step_size: float
    nearest: float


def nearest(averages: Iterator[Estimate], bound: Callable[[float], float], rounds: int) -> float:
    """Give the largest (mean + 4s)/bound(T) over T = 1 .. rounds."""
    upper = (float(average.shifted(MARGIN)) for average in islice(averages, rounds))
    return max(value / bound(t) for t, value in enumerate(upper, start=1))


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
    """Yield what the lemma conditions on along one run of PAGE, for t = 1, 2, ..."""
    eta = plan.largest_step_size(problem.smoothness)
    draws = draw_pages(plan, 1, problem.d, rng)
    run = page(problem, problem.starts(1, 1), _float64([eta]), draws)
    for previous, theta in pairwise(iterate[0, 0] for iterate in run):
        yield Moment(theta, previous, (previous - theta) / eta)


def check_lemma(problem: Problem, plan: PagePlan, rounds: int, seed: int) -> Check:
    """Compare the two sides of the lemma at every t up to rounds of one run."""
    run = islice(moments(problem, plan, torch.Generator().manual_seed(seed)), rounds)
    ratios = [lemma_left(problem, plan, at) / lemma_bound(problem, plan, at) for at in run]
    name = f"lemma, b={plan.b}, b'={plan.b_small}"
    return Check(name, plan.largest_step_size(problem.smoothness), max(ratios))


def lemma_deviation(problem: Problem, plan: PagePlan, rounds: int, draws: int, seed: int) -> float:
    """Give the largest distance, in standard errors, of the sampled side from the closed form."""
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
    """
    Run PAGE with b' < √b at the theorem's η = 1/(2β), which breaks the bound, and the proof's.

    A correction adds a variance of nearly (βη)²‖g‖²/b': with b' = 1 a quarter of ‖g‖² each step,
    until the next fresh gradient, 1/p = 2501 steps away.
    """
    plan = PagePlan.default(2500, b_small=1)
    sizes = (1 / (2 * ROUGH.smoothness), plan.largest_step_size(ROUGH.smoothness))
    return [check_page(ROUGH, plan, eta, rounds, seed) for eta in sizes]


@dataclass(frozen=True)
class Reached:
    """First round with the average at ε², at the best step size of the grid."""

    b: int
    rounds: int
    step_size: float
    gradients: float
    """Gradient evaluations up to then, in expectation."""
    promised: float
    """Rounds after which the theorem's bound is at ε²."""


@dataclass(frozen=True)
class Row:
    """PAGE against SGD of equal work per round, and against SGD with one b for every ε."""

    epsilon: float
    page: Reached
    sgd: Reached
    fixed: Reached

    @property
    def ratio(self) -> float:
        """Rounds of SGD of equal work per round for each of PAGE's."""
        return self.sgd.rounds / self.page.rounds


EPSILONS = (1.0, 0.7, 0.45)
STEP_SIZES = [2 ** (half / 2) / SMOOTH.smoothness for half in range(-10, 3)]
"""The one grid of both algorithms, from 1/(32β) to 2/β."""
MOST_ROUNDS = 40_000


def table(epsilons: tuple[float, ...] = EPSILONS, seed: int = 0) -> list[Row]:
    """Count rounds until (1/T) Σ_{t<T} E‖∇L(θ^t)‖² ≤ ε², PAGE with the theorem's b = 2σ²/ε²."""
    plans = [PagePlan.default(math.ceil(2 * SMOOTH.variance / e**2)) for e in epsilons]
    work = [math.ceil(plan.gradients_per_step) for plan in plans]
    return [
        Row(e, reach_page(plan, e, seed), reach_sgd(b, e, seed), reach_sgd(work[0], e, seed))
        for e, plan, b in zip(epsilons, plans, work, strict=True)
    ]


def reach_sgd(b: int, epsilon: float, seed: int) -> Reached:
    """Count the rounds of SGD at its best step size, in its favour."""
    averages = run_sgd(SMOOTH, STEP_SIZES, b, REPETITIONS, seed)
    rounds, best = first_below(averages, epsilon**2, -TILT)
    promises = [promised(partial(sgd_bound, SMOOTH, eta, b), epsilon) for eta in STEP_SIZES]
    return Reached(b, rounds, STEP_SIZES[best], rounds * b, min(promises))


def reach_page(plan: PagePlan, epsilon: float, seed: int) -> Reached:
    """Count the rounds of PAGE at its best step size, in its disfavour."""
    averages = run_page(SMOOTH, STEP_SIZES, plan, REPETITIONS, seed)
    rounds, best = first_below(averages, epsilon**2, TILT)
    gradients = plan.b + (rounds - 1) * plan.gradients_per_step
    proven = plan.largest_step_size(SMOOTH.smoothness)
    promise = promised(partial(page_bound, SMOOTH, proven, plan), epsilon)
    return Reached(plan.b, rounds, STEP_SIZES[best], gradients, promise)


def first_below(averages: Iterable[Estimate], target: float, margin: float) -> tuple[int, int]:
    """Find the first T at which a step size has mean + margin s ≤ target, and which one."""
    for rounds, average in enumerate(islice(averages, MOST_ROUNDS), start=1):
        value, best = average.shifted(margin).min(0)
        if value <= target:
            return rounds, int(best)
    raise RuntimeError(f"no step size brought the average to {target} in {MOST_ROUNDS} rounds")


def promised(bound: Callable[[float], float], epsilon: float) -> float:
    """Find the least T with bound(T) ≤ ε², for a bound A/T + B; ∞ where B ≥ ε²."""
    floor = bound(math.inf)
    if floor >= epsilon**2:
        return math.inf
    return math.ceil((bound(1.0) - floor) / (epsilon**2 - floor))


def exponent(epsilons: list[float], rounds: list[int]) -> float:
    """Fit q of rounds ∝ ε^-q by least squares on the logarithms."""
    return float(-np.polyfit(np.log(epsilons), np.log(rounds), 1)[0])


def describe_checks(results: list[Check]) -> str:
    """Lay out checks as text."""
    lines = [f"  {c.name:<26} η={c.step_size:<8.5f} {c.nearest:10.3f}" for c in results]
    return "\n".join(lines)


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
    fits = [
        exponent(epsilons, [reached.rounds for reached in column])
        for column in zip(*((row.page, row.sgd, row.fixed) for row in rows), strict=True)
    ]
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
        print(f"{title}\n{describe_checks(results)}")
    deviation = lemma_deviation(ROUGH, PagePlan.default(100), rounds=100, draws=4000, seed=0)
    print(f"lemma sampled 100 times, largest deviation {deviation:.1f} standard errors")
    print(f"\nrounds to an average ‖∇L‖² of ε²\n{describe(table())}")


if __name__ == "__main__":
    main()

"""A stochastic test problem with exactly known constants, SGD and PAGE on it, the paper's bounds.

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

Shapes: G step sizes, R repetitions, d coordinates; iterates are [G, R, d], signs are [2, R, d].
Every step size has the same random draws.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from xvfl.training.page import PagePlan


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

    def minibatch_gradient(self, theta: Tensor, signs: Tensor) -> Tensor:
        """Return the gradient of the minibatch with these mean signs."""
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
        """Return the mean plus `margin` standard errors."""
        return self.mean + margin * self.error


def draw_signs(b: int, repetitions: int, d: int, rng: torch.Generator) -> Tensor:
    """Sample the mean signs [2, R, d] of one minibatch of b samples per repetition."""
    count = torch.full((2, repetitions, d), float(b), dtype=torch.float64)
    heads = torch.binomial(count, torch.full_like(count, 0.5), generator=rng)
    return 2 * heads / b - 1


def draw_minibatches(b: int, repetitions: int, d: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Sample the minibatches of SGD, without end."""
    while True:
        yield draw_signs(b, repetitions, d, rng)


def draw_pages(
    plan: PagePlan, repetitions: int, d: int, rng: torch.Generator
) -> Iterator[PageDraw]:
    """Sample the steps of PAGE, without end; the first is fresh, since g^0 is a minibatch of b."""
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
    """θ^t, θ^{t-1} and g^{t-1}, each [d]: the quantities the lemma conditions on."""

    theta: Tensor
    previous: Tensor
    g: Tensor


def lemma_bound(problem: Problem, plan: PagePlan, at: Moment) -> float:
    """Right side of eq. variance-reduce."""
    before = (at.g - problem.gradient(at.previous)).square().sum()
    moved = problem.smoothness**2 / plan.b_small * (at.theta - at.previous).square().sum()
    return float((1 - plan.p) * (before + moved) + plan.p * problem.variance / plan.b)


def lemma_left(problem: Problem, plan: PagePlan, at: Moment) -> float:
    """Left side of eq. variance-reduce, E_t‖g^t - ∇L(θ^t)‖², in closed form.

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
    return running_averages(problem, sgd(problem, start, float64(step_sizes), draws))


def run_page(
    problem: Problem, step_sizes: list[float], plan: PagePlan, repetitions: int, seed: int
) -> Iterator[Estimate]:
    """Yield the running averages of PAGE."""
    draws = draw_pages(plan, repetitions, problem.d, torch.Generator().manual_seed(seed))
    start = problem.starts(len(step_sizes), repetitions)
    return running_averages(problem, page(problem, start, float64(step_sizes), draws))


def float64(values: list[float]) -> Tensor:
    """Make a tensor of step sizes."""
    return torch.tensor(values, dtype=torch.float64)

"""PAGE as an optimizer: against SGD for p = 1, against a slow twin, and the plan's arithmetic."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from xvfl.training.page import Page, PagePlan

# Shapes: N rows in all, B rows of a minibatch, 5 columns, 3 classes.
N = 400


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def table(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(N, 5, generator=rng, dtype=dtype)
    return x, torch.randint(3, (N,), generator=rng)


def mlp(dtype: torch.dtype) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def loss_on(net: nn.Module, rows: Tensor, dtype: torch.dtype) -> Tensor:
    x, y = table(dtype)
    return nn.functional.cross_entropy(net(x[rows]), y[rows])


def rows_of(b: int, rng: torch.Generator) -> Tensor:
    return torch.randperm(N, generator=rng)[:b]


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_page_with_p_one_is_sgd_bit_for_bit(weight_decay: float) -> None:
    ours, theirs = mlp(torch.float32), mlp(torch.float32)
    page = Page(ours.parameters(), lr=0.3, weight_decay=weight_decay)
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.3, weight_decay=weight_decay)
    rng = torch.Generator().manual_seed(3)
    first = [parameter.detach().clone() for parameter in ours.parameters()]
    for _ in range(60):
        rows = rows_of(32, rng)
        for net, optimizer in ((ours, page), (theirs, sgd)):
            optimizer.zero_grad()
            loss_on(net, rows, torch.float32).backward()
        page.refresh()
        page.step()
        sgd.step()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, other)
    for start, now in zip(first, ours.parameters(), strict=True):
        assert not torch.equal(start, now)


def slow_page(
    start: list[Tensor],
    gradient: Callable[[list[Tensor], Tensor], list[Tensor]],
    steps: list[tuple[bool, Tensor]],
    lr: float,
) -> Iterator[list[Tensor]]:
    """Yield θ^1, θ^2, ... of eq. pageupdate as it is written."""
    history = [start]
    g: list[Tensor] = []
    for fresh, rows in steps:
        if fresh:
            g = gradient(history[-1], rows)
        else:
            here, there = gradient(history[-1], rows), gradient(history[-2], rows)
            g = [old + (h - t) for old, h, t in zip(g, here, there, strict=True)]
        history.append([theta - lr * part for theta, part in zip(history[-1], g, strict=True)])
        yield history[-1]


def slow_gradient(theta: list[Tensor], rows: Tensor) -> list[Tensor]:
    x, y = table(torch.float64)
    w1, b1, w2, b2 = leaves = [part.clone().requires_grad_() for part in theta]
    logits = (x[rows] @ w1.T + b1).tanh() @ w2.T + b2
    loss = (logits.logsumexp(1) - logits.gather(1, y[rows][:, None])[:, 0]).mean()
    return list(torch.autograd.grad(loss, leaves))


def page_step(net: nn.Module, page: Page, fresh: bool, rows: Tensor) -> None:
    page.zero_grad()
    loss_on(net, rows, torch.float64).backward()
    if fresh:
        page.refresh()
    else:
        page.look_back()
        loss_on(net, rows, torch.float64).backward()
        page.correct()
    page.step()


def test_page_equals_the_slow_twin() -> None:
    rng = torch.Generator().manual_seed(4)
    coins = [True, *(torch.rand(79, generator=rng) < 0.2).tolist()]
    steps = [(fresh, rows_of(64 if fresh else 8, rng)) for fresh in coins]
    assert 5 < sum(coins) < 40
    net = mlp(torch.float64)
    page = Page(net.parameters(), lr=0.2)
    start = [parameter.detach().clone() for parameter in net.parameters()]
    twins = slow_page(start, slow_gradient, steps, lr=0.2)
    for (fresh, rows), twin in zip(steps, twins, strict=True):
        page_step(net, page, fresh, rows)
        for mine, other in zip(net.parameters(), twin, strict=True):
            torch.testing.assert_close(mine.detach(), other, rtol=0, atol=1e-13)


def test_looking_back_loads_the_last_parameters_and_correcting_the_present_ones() -> None:
    net = mlp(torch.float64)
    page = Page(net.parameters(), lr=0.2)
    rng = torch.Generator().manual_seed(5)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    page_step(net, page, True, rows_of(64, rng))
    now = [parameter.detach().clone() for parameter in net.parameters()]
    page.look_back()
    assert all(map(torch.equal, net.parameters(), before))
    assert all(parameter.grad is None for parameter in net.parameters())
    page.correct()
    assert all(map(torch.equal, net.parameters(), now))


def test_a_parameter_without_gradient_counts_as_gradient_zero() -> None:
    used, idle = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))
    page = Page([used, idle], lr=0.5)
    (used * idle).backward()
    page.refresh()
    page.step()
    assert (used.item(), idle.item()) == (0.5, 2.0)
    page.zero_grad()
    (3 * used).backward()  # idle takes no part here, and did at θ^{t-1}
    page.look_back()
    (used * idle).backward()
    page.correct()
    page.step()
    # g = (3, 2) + (3, 0) - (3, 2), the last at θ^{t-1} = (2, 3)
    assert (used.item(), idle.item()) == (0.5 - 0.5 * 3.0, 2.0)


def test_the_default_plan_is_the_papers() -> None:
    assert PagePlan.default(100) == PagePlan(100, 10, 10 / 110)
    assert PagePlan.default(101).b_small == 11
    assert PagePlan.default(100, b_small=5).p == 5 / 105
    assert PagePlan.default(100, p=0.5) == PagePlan(100, 10, 0.5)


def test_a_step_costs_a_big_minibatch_or_two_small_ones() -> None:
    plan = PagePlan.default(100)
    assert plan.gradients_per_step == pytest.approx(300 / 11)  # 100/11 + 2 · 10/11 · 10
    assert plan.gradients_per_step > 2 * plan.b_small  # the paper's count has 2b' as its ceiling
    assert PagePlan(64, 8, 1.0).gradients_per_step == 64
    coins = torch.rand(20_000, generator=torch.Generator().manual_seed(6)) < plan.p
    rows = torch.where(coins, plan.b, 2 * plan.b_small).double()
    assert abs(rows.mean() - plan.gradients_per_step) < 4 * rows.std() / math.sqrt(len(rows))


@pytest.mark.parametrize(
    ("b", "b_small", "share"), [(100, 10, 1 / 2), (100, 1, 1 / 11), (100, 5, 1 / 3), (4, 4, 2 / 3)]
)
def test_the_largest_step_size_with_the_default_coin(b: int, b_small: int, share: float) -> None:
    plan = PagePlan.default(b, b_small)
    assert plan.largest_step_size(3.0) == pytest.approx(share / 3.0)
    assert PagePlan(b, b_small, 1.0).largest_step_size(3.0) == pytest.approx(1 / 3.0)


@given(b=st.integers(1, 10**6), b_small=st.integers(1, 10**4))
def test_the_theorems_step_size_needs_b_small_of_at_least_the_root_of_b(
    b: int, b_small: int
) -> None:
    allowed = PagePlan.default(b, b_small).largest_step_size(2.0) * (1 + 1e-12) >= 1 / (2 * 2.0)
    assert allowed == (b_small**2 >= b)


def descent_left(plan: PagePlan, beta: float, eta: float) -> float:
    """The proof's 1/(2η) - β/2 - (1-p)ηβ²/(2pb'), which eq. use-eta1 needs to be ≥ 0."""
    return 1 / (2 * eta) - beta / 2 - (1 - plan.p) * eta * beta**2 / (2 * plan.p * plan.b_small)


@given(
    b_small=st.integers(1, 10**4), p=st.floats(1e-4, 1), beta=st.floats(1e-3, 1e3),
    share=st.floats(1e-3, 1),
)  # fmt: skip
def test_up_to_the_largest_step_size_the_proof_goes_through(
    b_small: int, p: float, beta: float, share: float
) -> None:
    plan = PagePlan(10**6, b_small, p)
    eta = share * plan.largest_step_size(beta)
    assert descent_left(plan, beta, eta) >= -1e-12 * beta


def test_the_proof_fails_at_half_over_beta_for_a_small_b_small() -> None:
    assert descent_left(PagePlan.default(100, 10), 2.0, 1 / 4) > 0
    assert descent_left(PagePlan.default(100, 8), 2.0, 1 / 4) > 0  # exact from b' ≥ √(b/2)
    assert descent_left(PagePlan.default(100, 7), 2.0, 1 / 4) < 0

"""The training loop: optimisers as a run uses them."""

import pytest
import torch
from torch import Tensor

from xvfl.config import LossConfig, NetConfig, TrainConfig
from xvfl.methods.base import Federation
from xvfl.primitives.rows import Rows
from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.stacked_runs import RunConfig, StackedRuns


def trained(optimizer: str, weight_decay: float, probability: float | None) -> list[Tensor]:
    """Give every weight after two epochs."""
    train = TrainConfig(
        epochs=2,
        batch_size=256,
        optimizer=optimizer,  # type: ignore[arg-type]
        learning_rate=0.05,
        momentum=0.0,
        weight_decay=weight_decay,
        page_probability=probability,
    )
    net = NetConfig(embedding_dim=8, hidden_dim=16)
    stack = StackedRuns(
        digits(), [RunConfig("xvfl+", 0.5, 0, net=net, loss=LossConfig(), train=train)]
    )
    stack.train()
    holders = [worker.net for worker in stack.federation.workers] + [stack.method.heads]
    return [weight for net in holders for weight in net.parameters()]


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_a_run_with_page_at_p_1_is_the_run_with_sgd_bit_for_bit(weight_decay: float) -> None:
    sgd = trained("sgd", weight_decay, None)
    page = trained("page", weight_decay, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(sgd, page, strict=True))


def test_a_run_with_pages_default_coin_is_another_run() -> None:
    sgd, page = trained("sgd", 0.0, None), trained("page", 0.0, None)
    assert not all(torch.equal(a, b) for a, b in zip(sgd, page, strict=True))


@pytest.mark.parametrize("interval", [1, 3])
def test_features_are_completed_in_every_nth_step(interval: int) -> None:
    train = TrainConfig(epochs=1, batch_size=128, completion_interval=interval)
    net = NetConfig(embedding_dim=8, hidden_dim=16)
    stack = StackedRuns(digits(), [RunConfig("xvfl+", 0.5, 0, net=net, train=train)])
    trainer, terms = stack.trainer(), []
    loss = stack.method.loss

    def recorded(federation: Federation, rows: Rows) -> dict[str, Tensor]:
        terms.append(loss(federation, rows))
        return terms[-1]

    stack.method.loss = recorded  # type: ignore[method-assign]
    *_, epoch = trainer.run(lambda: 0.0)
    assert ["decision" in each for each in terms] == [
        step % interval == 0 for step in range(trainer.batches_per_epoch)
    ]
    for name in ("decision", "self"):
        values = [each[name].item() for each in terms if name in each]
        assert epoch.values[name] == pytest.approx(sum(values) / len(values)), (
            "of these steps alone"
        )

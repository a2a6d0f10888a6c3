"""Training and prediction on shares, by three processes: equal to plain arithmetic."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from xvfl_secret import plain

from tests.secret.small_problem import small_problem
from tests.secret.three_nodes import ThreeNodes, combine, needs_spu

pytestmark = needs_spu
STEPS = 50


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ThreeNodes]:
    made = ThreeNodes(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("classification", [True, False])
def test_weights_and_predictions_are_those_of_plain_arithmetic(
    nodes: ThreeNodes, classification: bool
) -> None:
    problem = small_problem(classification=classification)
    options = {"learning_rate": 0.5 if classification else 0.125, "momentum": 0.875, "seed": 3}
    nodes.write_inputs(
        problem.views,
        problem.handles,
        problem.y,
        problem.first,
        classification=classification,
        epochs=6,
        **options,
    )
    asked = np.array([5, 0, 17])
    nodes.request("some", asked)
    nodes.run("--once")
    rows_per_epoch = int((problem.handles >= 0).any(1).sum()) // 16
    steps = 6 * rows_per_epoch
    assert steps >= STEPS
    twin = problem.train(6, 16, options["learning_rate"], 0.875, 3)
    found = nodes.weights(steps)
    worst = {name: float(np.abs(found[name] - twin[name]).max()) for name in twin}
    print(worst)
    assert max(worst.values()) < 1e-3
    assert float(np.abs(twin["w"] - problem.first["w"]).max()) > 0.1
    answers = [np.load(nodes.state(rank) / "answers" / "some.npy") for rank in range(3)]
    x, present, _ = problem.batch(asked)
    expected = plain.predict(x, present, twin, classification)
    assert np.abs(combine(answers) - expected).max() < 1e-3

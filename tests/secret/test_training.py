"""Training and prediction on shares, by three processes: equal to plain arithmetic."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.secret.small_problem import small_problem
from tests.secret.three_nodes import TIMEOUT_S, ThreeNodes, combine, needs_spu
from xvfl_secret import plain

pytestmark = [needs_spu, pytest.mark.slow]
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


def test_a_killed_node_is_started_again_and_the_result_is_the_same(nodes: ThreeNodes) -> None:
    problem = small_problem()
    options = {"learning_rate": 0.5, "momentum": 0.875, "seed": 3}
    nodes.write_inputs(
        problem.views, problem.handles, problem.y, problem.first, epochs=10, **options
    )
    running = [nodes.start(rank) for rank in range(3)]
    (training,) = nodes.wait_for_folder(1, "training/*/10")
    nodes.kill(running[1])
    stopped_at = max(int(each.name) for each in training.parent.iterdir() if each.name.isdecimal())
    for rank in (0, 2):
        nodes.wait_for(rank, "the connection to")
        nodes.wait_for(rank, "waiting up to")
    running[1] = nodes.start(1)
    for node in running:
        assert node.wait(TIMEOUT_S) == 0, nodes.logs()
    assert f"continuing after step {stopped_at}" in nodes.logs()
    steps = 10 * (int((problem.handles >= 0).any(1).sum()) // 16)
    twin, found = problem.train(10, 16, 0.5, 0.875, 3), nodes.weights(steps)
    assert max(float(np.abs(found[name] - twin[name]).max()) for name in twin) < 1e-3


def test_nodes_with_other_inputs_end_with_a_message(nodes: ThreeNodes) -> None:
    problem = small_problem()
    nodes.write_inputs(problem.views, problem.handles, problem.y, problem.first)
    about = nodes.state(2) / "inputs" / "party-shop" / "about.json"
    about.write_text(about.read_text().replace("shop", "other"))
    running = [nodes.start(rank, "--once") for rank in range(3)]
    assert {node.wait(TIMEOUT_S) for node in running} <= {2, 75}
    assert "has other inputs than this node" in nodes.logs()
    assert not list(nodes.folder.glob("*/training/*/*"))

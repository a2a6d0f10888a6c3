"""A party takes part in a batch when it has applied the batch's update, not before."""

from tests.federation.elastic_helpers import (
    make_endpoint,
    make_roster,
    make_workers,
    train_config,
)
from xvfl.service.outcome import participation


def test_a_batch_whose_update_was_lost_is_not_counted() -> None:
    roster, trainer, lines, _, _ = make_roster(train_config("adamw", epochs=1))
    steps = trainer.run(lambda: 0.0)
    for _ in range(6):
        next(steps)
    lines[1].silent = "before"
    for _ in steps:
        pass
    roster.flush()
    applied = len(lines[1].heard)
    assert applied == 5
    took_part = participation(roster)
    assert took_part["p1"]["batches"] == applied
    assert took_part["p0"]["batches"] == took_part["p0"]["of_batches"] == 10
    assert took_part["p1"]["rows"] < took_part["p0"]["rows"]


def test_batches_that_a_killed_party_has_forgotten_are_not_counted() -> None:
    roster, trainer, lines, events, stores = make_roster(train_config("adamw", epochs=1))
    steps = trainer.run(lambda: 0.0)
    for step in range(8):
        next(steps)
        if step == 4:
            roster.flush(save=trainer.progress.step)
    workers, *_ = make_workers()
    lines[1].end = make_endpoint(workers[1], stores[1], instance_id="second")
    lines[1]._handle = lines[1].end.handle
    for _ in steps:
        pass
    roster.flush()
    first, last = events[-1]["lost_updates"]
    assert (first, last) == (6, 8)
    took_part = participation(roster)
    assert took_part["p1"]["batches"] == took_part["p1"]["of_batches"] - 3
    assert took_part["p0"]["batches"] == took_part["p0"]["of_batches"]


def test_an_update_whose_reply_was_lost_is_counted_when_the_party_is_back() -> None:
    roster, trainer, lines, _, _ = make_roster(train_config("adamw", epochs=1))
    steps = trainer.run(lambda: 0.0)
    for _ in range(3):
        next(steps)
    lines[1].silent = "after"
    next(steps)
    assert participation(roster)["p1"]["batches"] == 2
    lines[1].silent = None
    for _ in steps:
        pass
    roster.flush()
    took_part = participation(roster)["p1"]
    assert took_part["batches"] == took_part["of_batches"] - 1

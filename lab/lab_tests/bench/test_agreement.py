"""Losses of an epoch, the way `xvfl-lab bench agreement` compares them on a GPU."""

import pytest
import torch

from xvfl.config import NetConfig
from xvfl.training.loop import Trainer
from xvfl_lab.bench.agreement import BATCH, STEPS, agreement, losses, losses_from_disk, rows_for
from xvfl_lab.bench.disk import on_disk
from xvfl_lab.bench.gpu import configs, random_table
from xvfl_lab.bench.sections import QUICK
from xvfl_lab.bench.shapes import config
from xvfl_lab.experiments.stacked_runs import StackedRuns

CPU = torch.device("cpu")


def test_runs_at_once_lose_the_mean_of_what_each_loses_alone() -> None:
    task = random_table(rows_for(BATCH))
    runs = configs("xvfl+", NetConfig(8, 8), config(BATCH, epochs=1))[:3]
    alone = [losses(task, [run], CPU, captured=False) for run in runs]
    assert len({round(each, 3) for each in alone}) == 3
    assert losses(task, runs, CPU, captured=False) == pytest.approx(sum(alone) / 3, rel=1e-5)


def test_a_run_taken_up_halfway_loses_what_it_would_have_lost() -> None:
    task = random_table(rows_for(BATCH))
    run = configs("xvfl+", NetConfig(8, 8), config(BATCH, epochs=1))[:1]
    whole = losses(task, run, CPU, captured=False)
    assert losses(task, run, CPU, captured=False, cut=STEPS // 2) == whole


def test_rows_on_disk_are_the_rows_in_memory() -> None:
    run = configs("xvfl+", NetConfig(8, 8), config(BATCH, epochs=1))[:1]
    kept, other = (StackedRuns(random_table(rows_for(BATCH)), run, CPU) for _ in range(2))
    known = kept.rows("train")
    with on_disk(other, CPU) as stored:
        index = stored.order([0], 0)(0, 2 * BATCH)
        assert len(index.unique()) == 2 * BATCH
        found, expected = stored.take(index), known.take(index)
        for part in ("handles", "full", "seen", "y", "weight"):
            torch.testing.assert_close(getattr(found, part), getattr(expected, part))
        for here, there in zip(kept.federation.workers, other.federation.workers, strict=True):
            for part in ("values", "codes", "observed"):
                mine = getattr(here.table.take(expected.handles[:, 0]), part)
                torch.testing.assert_close(getattr(there.table.take(index), part), mine)


def test_a_run_from_disk_is_the_same_each_time() -> None:
    assert losses_from_disk("xvfl+", CPU) == losses_from_disk("xvfl+", CPU)


def test_an_epoch_has_the_steps_it_should() -> None:
    run = configs("xvfl+", NetConfig(8, 8), config(BATCH, epochs=1))[0]
    stack = StackedRuns(random_table(rows_for(BATCH)), [run], CPU)
    trainer = Trainer(stack.federation, stack.method, stack.rows("train"), stack.options.train)
    kinds = [record.kind for record in trainer.run(lambda: 0.0)]
    assert kinds == ["step"] * STEPS + ["epoch"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_fast_ways_agree_with_the_plain_one() -> None:
    assert [each.what for each in agreement(QUICK).claims if not each.met] == []

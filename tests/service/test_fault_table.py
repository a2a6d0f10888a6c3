"""After each fault, processes say what happened as the table of docs/operate.md states."""

import shutil
from pathlib import Path

import pytest

from tests.make_once import make_once
from tests.service.fault_processes import COORDINATOR, PARTY, federation
from tests.service.fault_table import FAULTS, TRAIN, cause, documented, make_trained


def test_the_table_has_a_line_for_each_fault() -> None:
    assert [each.split(" | ")[0].removeprefix("| ") for each in documented()] == list(FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_leaves_what_the_docs_state(
    fault: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trained = make_once(tmp_path_factory, "fault_table", make_trained)
    line = cause(fault, tmp_path, trained)
    assert line in documented(), f"run `python -m tests.service.fault_table` if this holds: {line}"


@pytest.mark.slow
def test_a_killed_retrain_ends_no_prediction(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trained = make_once(tmp_path_factory, "fault_table", make_trained)
    with federation(tmp_path, trained) as f:
        f.serve()
        shutil.copy(tmp_path / "coordinator.toml", tmp_path / "retrain.toml")
        f.change("retrain", "epochs = 2", "epochs = 100_000\npatience = 0")
        f.start("retrain", *TRAIN, "--retrain")
        f.wait(COORDINATOR, "epoch")
        f.running["retrain"].kill()
        f.running["retrain"].join()
        assert f.predict(["c003"]) == 200
        metrics = f.metrics(COORDINATOR)
        assert metrics["xvfl_predicting_head"] == metrics["xvfl_head"] == 1
        assert f.get(COORDINATOR, "/health") == f.get(PARTY, "/health") == (200, "ok\n")
        assert all(each.is_alive() for name, each in f.running.items() if name != "retrain")

"""The measurement of big tables, on small ones."""

from pathlib import Path

import pyarrow.parquet
import pytest

from xvfl_lab import big_tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("big")
    big_tables.write(folder, 3000)
    return folder


def test_tables_have_the_shape_they_are_said_to_have(folder: Path) -> None:
    for party, more in (("bank", 2), ("shop", 1)):
        about = pyarrow.parquet.read_metadata(folder / f"{party}.parquet")
        assert (about.num_rows, about.num_columns) == (3000, big_tables.COLUMNS + more)


def test_training_reports_memory_and_leaves_no_run(folder: Path) -> None:
    found = big_tables.train(folder, 3)
    assert 0 < found["steps_mb"] <= found["peak_mb"]
    assert not (folder / "run").exists()


def test_rates_are_measured(folder: Path) -> None:
    assert big_tables.step(folder, 9)["of_memory_rate"] > 0
    found = big_tables.predict(folder, 0)
    assert found["predicted_rows_s"] > 0 and found["of_model_rate"] > 0
    assert pyarrow.parquet.read_metadata(folder / "answers.parquet").num_rows == 3000

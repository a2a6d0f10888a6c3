"""The federated demo: parties alone, and the check of its result."""

from pathlib import Path

import pandas as pd
import pytest

from xvfl.cli.demo_federated import PARTIES, alone_lines, check_gain, write_files
from xvfl.errors import RunError


def line(mode: str, accuracy: float) -> dict[str, object]:
    return {"mode": mode, "party": "left", "metrics": {"accuracy": accuracy}}


def test_a_federation_must_beat_each_party_alone() -> None:
    federated = [line("local", 0.99), line("collaborative", 0.85)]
    check_gain([line("alone", 0.80), line("alone", 0.84)], federated)
    with pytest.raises(RunError, match=r"each party alone \(0.860\), got 0.850"):
        check_gain([line("alone", 0.86), line("alone", 0.70)], federated)


def test_parties_alone_predict_from_their_own_table(tmp_path: Path) -> None:
    write_files(tmp_path)
    path = tmp_path / "left.csv"
    table = pd.read_csv(path, index_col="id")
    table.mask(table.notna(), 0.0).to_csv(path)
    without_values, right = alone_lines(tmp_path)
    assert (without_values["party"], right["party"]) == PARTIES
    assert right["metrics"]["accuracy"] > 0.7 > 2 * without_values["metrics"]["accuracy"]

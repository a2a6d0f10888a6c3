"""After each fault, processes say what happened as the table of docs/operate.md states."""

from pathlib import Path

import pytest

from tests.make_once import make_once
from tests.service.fault_table import FAULTS, cause, documented, make_trained


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

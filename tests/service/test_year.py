"""A year of a federation: no request fails, and nobody is asked for more than an approval."""

from pathlib import Path

import pytest

from tests.machines import may_create_machines
from tests.service.year import live_a_year, table_of

pytestmark = pytest.mark.slow


def test_a_year_under_a_steady_load(tmp_path: Path) -> None:
    """On machines of their own where namespaces may be created, else on one."""
    print(table_of(live_a_year(tmp_path, may_create_machines())))

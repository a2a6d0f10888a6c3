"""A year of a federation: no request fails, and nobody is asked for more than an approval."""

import re
from pathlib import Path

import pytest

from tests.machines import may_create_machines
from tests.processes import ROOT
from tests.service.year import live_a_year, table_of

pytestmark = pytest.mark.slow
GUIDE = ROOT / "docs" / "operate.md"


def commands_of_guide() -> set[str]:
    """Return the commands of the section about changes while a federation predicts."""
    text = GUIDE.read_text(encoding="utf-8").partition("## Changes while it predicts\n")[2]
    section = text.partition("### Several federations\n")[0]
    blocks = re.findall(r"^```(.*?)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    typed = (block for language, block in blocks if language != "text")
    lines = (line.partition(" #")[0].strip() for block in typed for line in block.splitlines())
    return {line for line in lines if line}


def test_a_year_under_a_steady_load(tmp_path: Path) -> None:
    """On machines of their own where namespaces may be created, else on one."""
    events = live_a_year(tmp_path, may_create_machines())
    print(table_of(events))
    typed = {command for event in events for _, command in event.commands}
    assert len(commands_of_guide()) > 10
    assert commands_of_guide() - typed == set()
    failed = [event.what for event in events if event.failed]
    assert failed == ["update the coordinator"]

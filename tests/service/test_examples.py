"""The example folders say what the commands understand."""

from pathlib import Path

import pytest

from xvfl.sides import CoordinatorFile, PartyFile, read_side

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["two_parties", "four_parties"])
def test_each_side_names_its_own_files(name: str) -> None:
    folder = EXAMPLES / name
    sides = {path.stem: read_side(path) for path in folder.glob("*.toml")}
    main = sides.pop("coordinator")
    assert isinstance(main, CoordinatorFile)
    assert set(main.parties) == set(sides)
    for party, side in sides.items():
        assert isinstance(side, PartyFile)
        assert Path(side.table).name == f"{party}.csv"
        assert Path(side.tls.key).name == f"{party}.key"
        assert side.coordinator.rpartition(":")[2] == main.listen.rpartition(":")[2]
    assert len({Path(side.state).name for side in (main, *sides.values())}) == len(sides) + 1

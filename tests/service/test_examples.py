"""The configurations of the examples are valid."""

from pathlib import Path

import pytest

from xvfl.service.config import CoordinatorConfig, PartyProcessConfig, load_config

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["two_parties", "four_parties"])
def test_each_process_names_its_own_files(name: str) -> None:
    folder = EXAMPLES / name
    paths = [path for path in folder.glob("*.toml") if path.stem != "audit"]
    sides = {path.stem: load_config(path) for path in paths}
    main = sides.pop("coordinator")
    assert isinstance(main, CoordinatorConfig)
    assert set(main.parties) == set(sides)
    for party, side in sides.items():
        assert isinstance(side, PartyProcessConfig)
        assert Path(side.table).name == f"{party}.csv"
        assert Path(side.tls.private_key).name == f"{party}.key"
        assert side.coordinator.rpartition(":")[2] == main.listen.rpartition(":")[2]
    assert len({Path(side.state_dir).name for side in (main, *sides.values())}) == len(sides) + 1

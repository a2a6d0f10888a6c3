"""A coordinator's own configuration: how tensors travel."""

from pathlib import Path

import pytest

from xvfl.errors import ConfigError
from xvfl.sides import CoordinatorFile, read_side

COORDINATOR = """\
listen = "127.0.0.1:0"
parties = ["shop"]
{more}
[tls]
authority = "ca.crt"
certificate = "coordinator.crt"
key = "coordinator.key"
[labels]
table = "labels.csv"
id = "customer"
column = "churned"
[train]
optimiser = "{optimiser}"
"""


def read(folder: Path, more: str, optimiser: str = "adamw") -> CoordinatorFile:
    path = folder / "coordinator.toml"
    path.write_text(COORDINATOR.format(more=more, optimiser=optimiser))
    side = read_side(path)
    assert isinstance(side, CoordinatorFile)
    return side


def test_the_payload_is_float32_unless_another_is_named(tmp_path: Path) -> None:
    assert read(tmp_path, "").payload == "float32"
    assert read(tmp_path, "", "page").payload == "float32"
    assert read(tmp_path, 'payload = "int8"').payload == "int8"


def test_an_unknown_payload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="payload.*int4"):
        read(tmp_path, 'payload = "int4"')


def test_page_adds_up_differences_that_rounding_would_drown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="payload: expected 'float32' with the optimiser 'page'"):
        read(tmp_path, 'payload = "bf16"', "page")

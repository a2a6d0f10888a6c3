"""The coordinator's configuration."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.options import resolved
from xvfl.errors import ConfigError
from xvfl.service.config import CoordinatorConfig, load_coordinator_config
from xvfl.service.coordinator_run import check_message_size
from xvfl.service.coordinator_service import CoordinatorService

COORDINATOR = """\
listen = "127.0.0.1:0"
parties = ["shop"]
{more}
[tls]
ca_certificate = "ca.crt"
certificate = "coordinator.crt"
private_key = "coordinator.key"
[labels]
table = "labels.csv"
id_column = "customer"
column = "churned"
"""


def read(folder: Path, more: str) -> CoordinatorConfig:
    path = folder / "coordinator.toml"
    path.write_text(COORDINATOR.format(more=more))
    return load_coordinator_config(path)


def test_members_whose_embeddings_exceed_a_message_are_rejected(tmp_path: Path) -> None:
    text = "max_message_bytes = 10_000_000\n[net]\nembedding_dim = 256\nmembers = {members}\n"
    text += '[privacy]\nlabel_protection = "off"'

    def config(members: int) -> CoordinatorConfig:
        given = read(tmp_path, text.format(members=members))
        options = resolved(given.net, given.loss, given.train, given.privacy)
        return replace(given, net=options.net, loss=options.loss, train=options.train)

    few = config(2)
    check_message_size(few, 3000)
    many = config(4)
    with pytest.raises(ConfigError, match="max_message_bytes: expected 16777216 or more"):
        check_message_size(many, 3000)


def test_members_are_rejected_with_differential_privacy(tmp_path: Path) -> None:
    config = read(tmp_path, "[net]\nmembers = 2\n[privacy]\nepsilon = 1.0")
    with pytest.raises(ConfigError, match="members: expected 1 with .*got 2"):
        CoordinatorService(config, show=False)

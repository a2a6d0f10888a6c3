"""The configurations on the page about secret shares."""

import re
import tomllib
from pathlib import Path

from tests.processes import ROOT
from xvfl.config import build
from xvfl.service.secret_config import SecretOptions
from xvfl.service.secret_shares.node import load_node_config


def test_the_examples_are_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "secret.md").read_text(encoding="utf-8")
    node, side = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "alpha.toml").write_text(node)
    config = load_node_config(tmp_path / "alpha.toml")
    assert config.parties == ("bank", "shop") and config.state_dir == str(tmp_path / "alpha")
    given = tomllib.loads(side)
    options = build(SecretOptions, given["secret_options"], "docs/secret.md")
    assert given["secret"] == "spu" and options.program == config.secret_options.program
    assert config.secret_options.nodes == tuple(str(tmp_path / name) for name in options.nodes)

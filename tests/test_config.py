"""Configuration classes: documentation of every field, and unknown keys."""

from dataclasses import fields, is_dataclass
from types import ModuleType

import pytest

from tests.small_tables import CONFIG
from xvfl import config
from xvfl.cli.template import field_docs
from xvfl.config import parse_config
from xvfl.errors import ConfigError
from xvfl.service import config as service_config
from xvfl.wire import tls


def config_classes(*modules: ModuleType) -> dict[str, type]:
    """Collect the dataclasses of some modules by name."""
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and is_dataclass(value)
    }


CLASSES = config_classes(config, service_config, tls)


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_is_documented(name: str) -> None:
    docs = field_docs(CLASSES[name])
    for each in fields(CLASSES[name]):
        assert docs[each.name].endswith((".", '"')), f"{name}.{each.name}: {docs[each.name]!r}"


def test_a_key_of_another_section() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'epochs': .*; epochs belongs in \[train\]"):
        parse_config(f"epochs = 3\n{CONFIG}", "run.toml")

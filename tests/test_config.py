"""Configuration classes: documentation of every field, and renamed keys."""

from dataclasses import fields, is_dataclass
from types import ModuleType

import pytest

from tests.small_tables import CONFIG
from xvfl import config
from xvfl.cli.template import field_docs
from xvfl.config import RENAMED_KEYS, build, parse_config
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
RENAMES = [
    (cls, old, new)
    for cls in CLASSES
    for old, new in RENAMED_KEYS.items()
    if new in CLASSES[cls].__dataclass_fields__ and old not in CLASSES[cls].__dataclass_fields__
]


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_is_documented(name: str) -> None:
    docs = field_docs(CLASSES[name])
    for each in fields(CLASSES[name]):
        assert docs[each.name].endswith((".", '"')), f"{name}.{each.name}: {docs[each.name]!r}"


@pytest.mark.parametrize(("cls", "old", "new"), RENAMES)
def test_a_renamed_key_names_its_successor(cls: str, old: str, new: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(CLASSES[cls], {old: 1}, "run.toml")
    assert str(error.value) == f"run.toml: unknown key {old!r}: renamed to {new!r} in 0.2"


def test_a_renamed_key_in_a_section() -> None:
    text = CONFIG.replace("batch_size = 32", "batch = 32")
    with pytest.raises(ConfigError, match="run.toml: train: unknown key 'batch': renamed to 'batc"):
        parse_config(text, "run.toml")


def test_a_key_of_another_section() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'epochs': .*; epochs belongs in \[train\]"):
        parse_config(f"epochs = 3\n{CONFIG}", "run.toml")

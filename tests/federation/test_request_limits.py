"""A party's limits on interactive training: sizes of settings, names of runs."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from tests.options import resolved
from xvfl.config import NO_PROTECTION, PrivacyConfig
from xvfl.errors import ConfigError, RunError, WireError
from xvfl.federation.request_limits import (
    UNLIMITED,
    RequestLimits,
    RunNames,
    SettingsLimits,
    copy_bytes,
    count_parameters,
)
from xvfl.federation.run_settings import RunSettings
from xvfl.primitives.layout import Feature, Layout

TRAINING = torch.arange(5)
LAYOUT = Layout((Feature("a", "numeric", 1), Feature("b", "numeric", 1)))


def settings(run: str = "a") -> RunSettings:
    options = resolved(privacy=NO_PROTECTION)
    return RunSettings("xvfl+", options.net, options.train, 0.3, run=run, privacy=NO_PROTECTION)


def test_the_default_settings_are_allowed() -> None:
    RequestLimits().check(settings())
    RequestLimits().check(replace(settings(), privacy=PrivacyConfig("noise")))
    UNLIMITED.check(settings())


@pytest.mark.parametrize("name", [each.name for each in fields(SettingsLimits)])
def test_larger_settings_are_refused(name: str) -> None:
    section = "train" if name == "batch_size" else "net"
    most = getattr(SettingsLimits(), name)
    for value, allowed in ((most, True), (most + 8, False)):
        changed = replace(getattr(settings(), section), **{name: value})
        asked = replace(settings(), **{section: changed})
        if allowed:
            RequestLimits().check(asked)
            continue
        with pytest.raises(
            WireError, match=rf"{name}: this party allows up to {most}, got {value}"
        ):
            RequestLimits().check(asked)


def test_runs_without_gradients_are_refused() -> None:
    for privacy in (PrivacyConfig("no_gradients"), PrivacyConfig("no_gradients", epsilon=1.0)):
        with pytest.raises(WireError, match="expected label_protection 'off' or 'noise'"):
            RequestLimits().check(replace(settings(), privacy=privacy))


def test_other_refusals() -> None:
    with pytest.raises(WireError, match="unknown method 'magic'"):
        RequestLimits().check(replace(settings(), method="magic"))
    with pytest.raises(WireError, match="run"):
        RequestLimits().check(settings(run=""))
    with pytest.raises(WireError, match="has no differential privacy"):
        RequestLimits(max_epsilon=3.0).check(settings())
    unresolved = replace(settings(), net=replace(settings().net, members=0))
    with pytest.raises(WireError, match="members: expected a resolved value"):
        RequestLimits().check(unresolved)


def test_too_many_parameters_are_refused() -> None:
    asked = settings()
    count = count_parameters(LAYOUT, asked.net, asked.method, asked.privacy)
    RequestLimits(max_parameters=count).check_parameters(LAYOUT, asked)
    with pytest.raises(WireError, match=f"nets of {count - 1} parameters, got {count}"):
        RequestLimits(max_parameters=count - 1).check_parameters(LAYOUT, asked)
    twice = replace(asked.net, members=2 * asked.net.members)
    assert copy_bytes(LAYOUT, twice) == 2 * copy_bytes(LAYOUT, asked.net)


def test_a_name_belongs_to_its_settings(tmp_path: Path) -> None:
    names = RunNames(tmp_path / "runs.json", 2)
    names.check(settings(), TRAINING)
    names.check(settings(), TRAINING)
    names.check(settings("b"), TRAINING)
    again = RunNames(tmp_path / "runs.json", 2)
    again.check(settings(), TRAINING)
    other = replace(settings(), reconstruction=0.5)
    for asked, rows in ((other, TRAINING), (settings(), TRAINING[1:])):
        with pytest.raises(WireError, match="settings or training rows of run 'a' changed"):
            again.check(asked, rows)
    with pytest.raises(WireError, match="allows 2 runs with one alignment"):
        again.check(settings("c"), TRAINING)


@pytest.mark.parametrize("content", ["", "[]", "not JSON"])
def test_a_damaged_list_of_runs_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "runs.json").write_text(content)
    with pytest.raises(RunError, match="restore the file"):
        RunNames(tmp_path / "runs.json", 2).check(settings(), TRAINING)


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"limits\.max_runs: expected above 0, got 0"):
        RequestLimits(max_runs=0)
    with pytest.raises(ConfigError, match=r"limits\.settings\.hidden_dim: expected above 0"):
        SettingsLimits(hidden_dim=0)
    with pytest.raises(ConfigError, match=r"limits\.max_delta: expected between 0 and 1, got 1"):
        RequestLimits(max_delta=1)

"""A party's limits on the settings of interactive training."""

from dataclasses import replace

import pytest

from tests.options import resolved
from xvfl.config import NO_PROTECTION, PrivacyConfig
from xvfl.errors import ConfigError, WireError
from xvfl.federation.request_limits import MAX_SIZE, RequestLimits
from xvfl.federation.run_settings import RunSettings


def settings(run: str = "a") -> RunSettings:
    options = resolved(privacy=NO_PROTECTION)
    return RunSettings("xvfl+", options.net, options.train, 0.3, run=run, privacy=NO_PROTECTION)


def test_the_default_settings_are_allowed() -> None:
    RequestLimits().check(settings())
    RequestLimits().check(replace(settings(), privacy=PrivacyConfig("noise")))


@pytest.mark.parametrize("name", ["embedding_dim", "n_blocks", "hidden_dim"])
def test_larger_nets_are_refused(name: str) -> None:
    for value, allowed in ((MAX_SIZE, True), (MAX_SIZE + 8, False)):
        asked = replace(settings(), net=replace(settings().net, **{name: value}))
        if allowed:
            RequestLimits().check(asked)
            continue
        with pytest.raises(WireError, match=rf"{name}: expected up to {MAX_SIZE}, got {value}"):
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


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"limits\.max_epsilon: expected above 0, got 0"):
        RequestLimits(max_epsilon=0)
    with pytest.raises(ConfigError, match=r"limits\.max_delta: expected between 0 and 1, got 1"):
        RequestLimits(max_delta=1)

"""Fixtures of the product's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import xvfl.wire  # noqa: F401  It sets up gRPC, which tests import in any order.


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Issue certificates for a coordinator and up to eight parties; return their folder."""
    from tests.wire.transport_helpers import issue_certificates

    folder = tmp_path_factory.mktemp("certs") / "ca"
    return issue_certificates(folder, [f"p{i}" for i in range(8)])


@pytest.fixture
def limited_threads() -> Iterator[None]:
    """Limit torch's threads as training does."""
    import torch

    from tests.problems import split_digits
    from xvfl.primitives.layout import any_image
    from xvfl.training.threads import limit_threads

    layouts = {name: table.layout for name, table in split_digits(2)[0].items()}
    with limit_threads(any_image(layouts), torch.device("cpu")), torch.random.fork_rng(devices=[]):
        yield


@pytest.fixture
def two_encoders() -> Iterator[str]:
    """Register a classification method with two bottoms at each party; return its name."""
    from xvfl.methods import MethodSpec, register_method, unregister_method
    from xvfl.methods.vanilla import Vanilla
    from xvfl.nets import ConcatHead

    def build(loss: object, parts: object) -> Vanilla:
        return Vanilla(ConcatHead(parts.head(2 * parts.parties * parts.width), parts.parties))  # type: ignore[attr-defined]

    register_method("two encoders", MethodSpec(build, branches=2))
    yield "two encoders"
    unregister_method("two encoders")

"""Suspicious uploads: constant, noise, rows in another order."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.upload.local_federation import PARTIES, LocalFederation
from xvfl.errors import RunError
from xvfl.service.uploads.upload_checks import CONSTANT, NO_SIGNAL, TOO_LARGE, judge


def draw(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw embeddings and targets that depend on one of their numbers."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=rng, dtype=torch.float64).tanh()
    return x, (x[:, :1] > 0).double()


def test_embeddings_that_predict_the_label_are_not_suspicious() -> None:
    assert judge(*draw(400, 0), *draw(200, 1)) is None


def test_noise_and_constants_are_found() -> None:
    (x, y), (new_x, new_y) = draw(400, 0), draw(200, 1)
    noise = torch.randn(600, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert judge(noise[:400], y, noise[400:], new_y) == NO_SIGNAL
    assert judge(0 * x + 0.3, y, 0 * new_x + 0.3, new_y) == CONSTANT
    assert judge(x.roll(7, 0), y, new_x.roll(7, 0), new_y) == NO_SIGNAL


def test_noise_of_an_epsilon_does_not_hide_large_embeddings() -> None:
    (x, y), (new_x, new_y) = draw(400, 0), draw(200, 1)
    unit = torch.nn.functional.normalize(x)
    noise = torch.randn(400, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    # The manifest of ε = 0.01 may state a standard deviation of 600 and more.
    for noise_std in (0.5, 600.0):
        assert judge(unit + noise_std * noise, y, new_x, new_y, noise_std) != TOO_LARGE
    assert judge(6000 * x, y, 6000 * new_x, new_y, 600.0) == TOO_LARGE
    # Nor all equal to the noise in size, in one direction.
    equal = 600 * torch.ones_like(x)
    assert judge(equal, y, equal[:200], new_y, 600.0) == TOO_LARGE


def test_few_rows_are_not_judged() -> None:
    assert judge(*draw(15, 0), *draw(15, 1)) is None


def send_constants(made: LocalFederation, party: str) -> None:
    """Let all matched rows of a party be equal: it uploads one embedding for all of them."""
    made.tables[party].loc[made.labels.index] = 0.0
    made.services[party] = made.start_party(party)


@pytest.fixture
def constant(tmp_path: Path) -> Iterator[LocalFederation]:
    """Return a federation in which the upload of `shop` is constant."""
    made = LocalFederation(tmp_path, n_rows=1000)
    # The label is a column of `bank`, so that chance does not decide about its upload.
    made.labels = (made.tables["bank"].loc[made.labels.index, "x0"] > 0).astype(int)
    send_constants(made, "shop")
    yield made
    made.close()


@pytest.mark.slow
def test_a_suspicious_upload_is_named_and_used(constant: LocalFederation) -> None:
    constant.run()
    assert [each["party"] for each in constant.events("upload_suspicious")] == ["shop"]
    manifest = constant.head.manifest()
    assert list(manifest["suspicious"]) == ["shop"] and manifest["parties"] == ["bank", "shop"]


def test_a_suspicious_upload_can_be_left_out(constant: LocalFederation) -> None:
    outcome = constant.run(on_anomaly="leave_out")
    assert outcome.evaluation is not None
    manifest = constant.head.manifest()
    assert manifest["parties"] == ["bank"] and manifest["left_out"] == ["shop"]


@pytest.mark.slow
def test_without_any_good_upload_there_is_no_run(tmp_path: Path) -> None:
    made = LocalFederation(tmp_path, n_rows=1000)
    for party in PARTIES:
        send_constants(made, party)
    with pytest.raises(RunError, match="no upload is left"):
        made.run(on_anomaly="leave_out")
    made.close()

"""Suspicious uploads: constant, noise, another version's rows, too large, rejected, late."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
import torch
from torch import Tensor

from tests.upload.local_federation import PARTIES, LocalFederation
from xvfl.errors import RunError
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.upload.views import compute_views
from xvfl.model.dashboard.run_reader import RunReader
from xvfl.model.dashboard.state_folder import describe_coordinator
from xvfl.model.run_dir import CHECKPOINT
from xvfl.model.run_summary import SUMMARY
from xvfl.service.config import TimeoutConfig
from xvfl.service.uploads import upload_party
from xvfl.service.uploads.party_encoder import PartyEncoder, allow_next_version
from xvfl.service.uploads.upload_checks import CONSTANT, NO_SIGNAL, REPEATED, TOO_LARGE, judge
from xvfl.service.uploads.upload_run import UploadRun


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


Views = Callable[[PartyWorker, Tensor, int], Tensor]
TOO_MUCH_NOISE = {"epsilon": 0.01, "delta": 1e-5, "noise_std": 600.0}
"""What a manifest may state, so that noise would explain large numbers."""


def noise(worker: PartyWorker, rows: Tensor, copies: int) -> Tensor:
    """Draw embeddings from the row numbers alone."""
    rng = torch.Generator().manual_seed(int(rows.double().square().sum()))
    views = compute_views(worker, rows, copies)
    return torch.randn(views.shape, generator=rng).tanh().half()


def factor(number: float) -> Views:
    """Return a forgery that multiplies embeddings."""
    return lambda *given: (compute_views(*given).float() * number).half()


def constants(*given: object) -> Tensor:
    """Return the same embedding for all rows."""
    return 0 * compute_views(*given) + 0.25  # type: ignore[arg-type]


class Dishonest:
    """A federation whose party `shop` forges its embeddings, and states their digests."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        # With 2,100 rows, each has a value at each party, so none is excluded if a party is.
        self.made, self._patch = LocalFederation(folder, n_rows=2100), patch
        # The label is a column of each, so that chance does not decide about an honest upload.
        tables = [self.made.tables[name].loc[self.made.labels.index, "x0"] for name in PARTIES]
        self.made.labels = (sum(each.fillna(0) for each in tables) > 0).astype(int)

    def forge(self, forgery: Views, **stated: float) -> None:
        """Forge all uploads that `shop` makes from now on."""
        honest = PartyEncoder.noise.fget  # type: ignore[attr-defined]

        def views(worker: PartyWorker, rows: Tensor, copies: int) -> Tensor:
            used = forgery if worker.name == "shop" else compute_views
            return used(worker, rows, copies)

        def noise_of(encoder: PartyEncoder) -> dict[str, float]:
            return stated if stated and encoder.name == "shop" else honest(encoder)

        self._patch.setattr(upload_party, "compute_views", views)
        self._patch.setattr(PartyEncoder, "noise", property(noise_of))

    def check(self, policy: str, reason: str, **options: object) -> None:
        """Train; check that log, status, report of the run and head name the upload of `shop`."""
        made, runs, before = self.made, list[UploadRun](), UploadRun.run

        def run(this: UploadRun, stop: Event) -> object:
            runs.append(this)
            return before(this, stop)

        self._patch.setattr(UploadRun, "run", run)
        outcome = made.run(on_anomaly=policy, **options)
        assert list(outcome.suspicious) == ["shop"] and reason in outcome.suspicious["shop"]
        (event,) = made.events("upload_suspicious")
        assert event["party"] == "shop" and event["reason"] == outcome.suspicious["shop"]
        for status in (runs[0].status(), describe_coordinator(made.coordinator.path)):
            assert status["party_upload_suspicious"] == outcome.suspicious
        name = f"coordinator/heads/{made.head.path.name}"
        shown = RunReader(made.coordinator.path).run(name) or {}
        assert any(reason in each["reason"] for each in shown["events"])
        left_out = policy == "leave_out"
        for report in (made.head.manifest(), made.head.read_json(SUMMARY)):
            assert report["suspicious"] == outcome.suspicious
            assert report["left_out"] == ["shop"] * left_out
        assert made.head.manifest()["parties"] == ["bank", "shop"][: 2 - left_out]
        assert outcome.evaluation is not None


@pytest.fixture
def dishonest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dishonest]:
    made = Dishonest(tmp_path, monkeypatch)
    yield made
    made.made.close()


@pytest.mark.slow
def test_honest_uploads_are_not_suspicious(dishonest: Dishonest) -> None:
    assert dishonest.made.run().suspicious == {}
    # A new version with other embeddings, and one with the same encoder.
    for keep in (False, True):
        allow_next_version(dishonest.made.services["shop"].inputs.folder, keep)
        dishonest.made.services["shop"] = dishonest.made.start_party("shop")
        assert dishonest.made.run(retrain=True).suspicious == {}
    assert dishonest.made.head.manifest()["encoders"]["shop"]["version"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["warn", "leave_out"])
@pytest.mark.parametrize(("forgery", "reason"), [(constants, CONSTANT), (noise, NO_SIGNAL)])
def test_constants_and_noise_are_named(
    dishonest: Dishonest, forgery: Views, reason: str, policy: str
) -> None:
    dishonest.forge(forgery)
    dishonest.check(policy, reason)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["warn", "leave_out"])
def test_the_rows_of_another_version_are_named(dishonest: Dishonest, policy: str) -> None:
    made, first = dishonest.made, dict[tuple[int, ...], Tensor]()

    def repeat(worker: PartyWorker, rows: Tensor, copies: int) -> Tensor:
        return first.setdefault(tuple(rows.tolist()), compute_views(worker, rows, copies))

    dishonest.forge(repeat)
    made.run()
    assert not made.events("upload_suspicious")
    allow_next_version(made.services["shop"].inputs.folder)
    made.services["shop"] = made.start_party("shop")
    dishonest.check(policy, REPEATED.format(1), retrain=True)


LARGE = "expected numbers from -1 to 1"
REJECTED = [
    (factor(1000.0), {}, 8.0, LARGE),
    (factor(6000.0), TOO_MUCH_NOISE, 8.0, "accepts up to max_noise = 8"),
    (factor(6000.0), TOO_MUCH_NOISE, 1000.0, "expected embeddings of length 1 with noise of 600"),
]


@pytest.mark.parametrize(
    ("forgery", "stated", "max_noise", "reason"),
    REJECTED,
    ids=["x 1000", "x 6000 with epsilon", "x 6000 with epsilon and any noise"],
)
def test_large_values_are_rejected_and_left_out(
    dishonest: Dishonest,
    forgery: Views,
    stated: dict[str, float],
    max_noise: float,
    reason: str,
) -> None:
    dishonest.forge(forgery, **stated)
    with pytest.raises(RunError, match=r"'shop': its upload is rejected: .* = 'leave_out'"):
        dishonest.made.run(max_noise=max_noise)
    (event,) = dishonest.made.events("upload_rejected")
    assert event["party"] == "shop" and reason in event["reason"]
    assert not dishonest.made.events("run_started")
    dishonest.check("leave_out", reason, max_noise=max_noise)


@pytest.mark.slow
def test_a_head_is_trained_again_without_the_party_that_was_left_out(dishonest: Dishonest) -> None:
    dishonest.forge(factor(1000.0))
    dishonest.made.run(on_anomaly="leave_out")
    dishonest.made.log.clear()
    reason = "no upload of it is stored, and no port is open"
    dishonest.check("leave_out", reason, retrain=True, offline=True)


def test_large_values_in_the_range_of_the_noise_are_named(dishonest: Dishonest) -> None:
    # 600 in one direction: as long as noise in 16 numbers, and not noise.
    def alike(*given: object) -> Tensor:
        return (0 * compute_views(*given) + 600.0).half()  # type: ignore[arg-type]

    dishonest.forge(alike, **TOO_MUCH_NOISE)
    dishonest.check("leave_out", TOO_LARGE, max_noise=1000.0)


@pytest.mark.slow
def test_a_resumed_training_asks_a_party_without_which_it_began_no_more(
    dishonest: Dishonest,
) -> None:
    made = dishonest.made
    dishonest.forge(factor(1000.0))

    class AfterAnEpoch(Event):
        def is_set(self) -> bool:
            return len(made.events("epoch")) == 1

    made.run(AfterAnEpoch(), on_anomaly="leave_out")
    assert (made.coordinator / "heads/1" / CHECKPOINT).is_file()
    outcome = made.run(on_anomaly="leave_out")
    assert len(made.events("upload_rejected")) == 1 and len(made.events("resumed")) == 1
    assert outcome.suspicious.keys() == {"shop"} and not made.events("upload_changed")
    assert made.head.manifest()["left_out"] == ["shop"]


@pytest.mark.slow
def test_a_party_that_never_finishes_its_upload_is_left_out(
    dishonest: Dishonest, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = dishonest.made
    monkeypatch.setattr(made.services["shop"], "_start_training", lambda: None)
    timeouts = TimeoutConfig(join=60, upload=3.0)
    with pytest.raises(RunError, match=r"has made no progress for 3 s; .* = 'leave_out'"):
        made.run(timeouts=timeouts)
    bank = made.services["bank"]._thread
    assert bank is not None
    bank.join()
    dishonest.check("leave_out", "has made no progress for 3 s", timeouts=timeouts)


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

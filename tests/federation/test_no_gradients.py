"""Label protection `no_gradients`: parties train by their own objectives alone."""

import json
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from tests.federation.split_helpers import (
    begin_run,
    make_endpoints,
    make_federation,
    make_small_method,
    settings_json,
)
from tests.federation.test_split import assert_equal, gradients, split_gradients
from tests.problems import SEED, D, Problem
from xvfl.config import NetConfig, PrivacyConfig, TrainConfig
from xvfl.errors import PartyError
from xvfl.federation.endpoint import Endpoint, PartyRun
from xvfl.federation.fused import FusedFederation
from xvfl.federation.party_worker import PartyWorker
from xvfl.federation.request_ledger import RequestLedger, RequestLimits
from xvfl.federation.run_settings import RunSettings
from xvfl.methods import METHODS, Method
from xvfl.wire import codec
from xvfl.wire.in_process import InProcessTransport
from xvfl.wire.messages import Backward, Embed, Flush

RECONSTRUCTION = 0.7


def fused_gradients(
    made: Problem, method: Method, sends_gradients: bool, reconstruction: float
) -> dict[str, Tensor]:
    each = zip(made.names, made.parties, made.tables, strict=True)
    workers = [PartyWorker(*of_party, [SEED], reconstruction) for of_party in each]
    fused = FusedFederation(workers, sends_gradients)
    fused.train(True)
    fused.backward(torch.stack(list(method.loss(fused, made.rows).values())).sum())
    return gradients(made, method)


def recorded_requests(end: Endpoint, requests: list[object]) -> InProcessTransport:
    def handle(frame: bytes) -> bytes:
        requests.append(codec.decode(frame))
        return end.handle(frame)

    return InProcessTransport(end.hello, handle)


@pytest.mark.parametrize("name", METHODS)
def test_split_and_fused_agree_and_no_gradient_is_sent(name: str) -> None:
    branches = METHODS[name].branches
    made = make_federation(2, torch.float64, dropout=0.3, branches=branches)
    weight = RECONSTRUCTION if name == "xvfl+" else 0.0
    method = make_small_method(made, name)
    expected = fused_gradients(made, method, sends_gradients=False, reconstruction=weight)
    requests: list[object] = []
    lines = [recorded_requests(end, requests) for end in make_endpoints(made, weight)]
    split = begin_run(lines, made.names, settings_json(), branches)
    split.sends_gradients = False
    assert_equal(split_gradients(made, method, split), expected, 1e-12)
    assert not any(isinstance(each, Backward) for each in requests)
    assert all(not each.gradients for each in requests if isinstance(each, Embed | Flush))


def test_only_heads_learn_from_labels() -> None:
    made = make_federation(2, torch.float64)
    method = make_small_method(made, "xvfl+")
    before = fused_gradients(made, method, sends_gradients=False, reconstruction=RECONSTRUCTION)
    made.rows.y.copy_((made.rows.y + 1) % 3)
    after = fused_gradients(made, method, sends_gradients=False, reconstruction=RECONSTRUCTION)
    for key, value in before.items():
        changed = not torch.equal(value, after[key])
        assert changed == key.startswith("heads"), key
    assert any(bool(v.any()) for key, v in before.items() if not key.startswith("heads"))


def limited_endpoints(made: Problem, limits: RequestLimits) -> list[Endpoint]:
    ends = make_endpoints(made, RECONSTRUCTION)
    for end in ends:
        start = end._start_run

        def limited(settings: RunSettings, training: Tensor, start=start) -> PartyRun:  # type: ignore[no-untyped-def]
            run = start(settings, training)
            return PartyRun(
                run.worker, run.row_status, RequestLedger(limits, len(run.worker.table))
            )

        end._start_run = limited
    return ends


def protected_settings(privacy: PrivacyConfig) -> str:
    settings = RunSettings("xvfl+", NetConfig(D, 6), TrainConfig(), RECONSTRUCTION, privacy=privacy)
    return json.dumps(asdict(settings))


def test_a_party_rejects_gradients_and_runs_that_need_them() -> None:
    made = make_federation(2, torch.float64)
    method = make_small_method(made, "xvfl+")
    ends = limited_endpoints(made, RequestLimits(min_rows=1, min_training_share=0, settings=None))
    lines = [InProcessTransport(end.hello, end.handle) for end in ends]
    begin_run(lines, made.names, protected_settings(PrivacyConfig("off")))
    assert [end.run for end in ends] == ["", ""]
    split = begin_run(lines, made.names, protected_settings(PrivacyConfig("no_gradients")))
    assert [end.run for end in ends] == ["run", "run"]
    with pytest.raises(PartyError, match="accepts none"):
        split_gradients(made, method, split)


def test_a_party_that_accepts_gradients_trains_with_them() -> None:
    made = make_federation(2, torch.float64)
    method = make_small_method(made, "xvfl+")
    expected = fused_gradients(made, method, sends_gradients=True, reconstruction=RECONSTRUCTION)
    ends = limited_endpoints(
        made, RequestLimits(min_rows=1, min_training_share=0, settings=None, accept_gradients=True)
    )
    lines = [InProcessTransport(end.hello, end.handle) for end in ends]
    split = begin_run(lines, made.names, protected_settings(PrivacyConfig("off")))
    assert_equal(split_gradients(made, method, split), expected, 1e-12)

"""Release: only what the coordinator signed, for this party, is taken."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests import small_tables
from tests.options import resolved
from xvfl import XVFLClassifier
from xvfl.certs.release_key import PRIVATE_KEY, PUBLIC_KEY
from xvfl.config import LossConfig, TrainConfig
from xvfl.data.sources import encode
from xvfl.dataset.in_memory import to_party_table
from xvfl.errors import ConfigError, ModeError, RunError, WireError
from xvfl.federation.run_settings import RunSettings
from xvfl.methods import MethodParts, method_spec
from xvfl.methods.pooling import load_decision_weights
from xvfl.model.cell_filler import save_own_cells
from xvfl.model.complete_run import CompleteOptions, complete_run
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import BUNDLE, ENCODER, RELEASE, open_bundle
from xvfl.service.checkpoints import Checkpoints
from xvfl.service.config import PartyProcessConfig, load_coordinator_config
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.party_release import PartyFolder
from xvfl.service.release import check_releasable, load_signing_key, sign_release, verify_release
from xvfl.service.release_store import ReleaseRecord, ReleaseStore
from xvfl.service.trained_heads import TrainedHeads
from xvfl.system.report import no_report
from xvfl.wire.messages import Release
from xvfl.wire.tls import Tls
from xvfl_serve.release_state import Revocation, read_release_state


def released(folder: Path) -> Release:
    parts = MethodParts(lambda width: torch.nn.Linear(width, 3), 2, 4, (0,))
    method = method_spec("xvfl+").build(resolved().loss, parts)
    key, head = load_signing_key(RunDir(folder)), method.select_parties([0]).heads.state_dict()
    return sign_release(key, {"party": "shop", "run": "r"}, head)


def coordinator_service(folder: Path) -> CoordinatorService:
    (folder / "labels.csv").write_text("id,label\na,0\nb,1\n")
    (folder / "coordinator.toml").write_text(
        'listen = "127.0.0.1:0"\nparties = ["shop"]\nrelease_to = ["shop"]\n'
        '[tls]\nca_certificate = "ca.crt"\ncertificate = "c.crt"\nprivate_key = "c.key"\n'
        '[labels]\ntable = "labels.csv"\nid_column = "id"\ncolumn = "label"\n'
    )
    return CoordinatorService(load_coordinator_config(folder / "coordinator.toml"), show=False)


def test_the_service_creates_the_key_at_its_first_start(tmp_path: Path) -> None:
    state = coordinator_service(tmp_path).folder.path
    public = (state / PUBLIC_KEY).read_bytes()
    assert (state / PRIVATE_KEY).stat().st_mode & 0o777 == 0o600
    # A copy that a party received before training verifies the head that is sent after it.
    (tmp_path / "copy.pub").write_bytes(public)
    assert verify_release(released(state), tmp_path / "copy.pub")["party"] == "shop"
    (state / PUBLIC_KEY).unlink()
    coordinator_service(tmp_path)
    assert (state / PUBLIC_KEY).read_bytes() == public


def test_a_damaged_signing_key(tmp_path: Path) -> None:
    (tmp_path / PRIVATE_KEY).write_text("nothing")
    with pytest.raises(RunError, match="expected an Ed25519 private key in PEM format"):
        load_signing_key(RunDir(tmp_path))


def test_what_was_signed_is_taken(tmp_path: Path) -> None:
    message = released(tmp_path)
    said = verify_release(message, tmp_path / PUBLIC_KEY)
    assert said == {"party": "shop", "run": "r", "tensors": ["weight", "bias"]}
    again = released(tmp_path)
    assert (tmp_path / PRIVATE_KEY).stat().st_mode & 0o777 == 0o600
    assert verify_release(again, tmp_path / PUBLIC_KEY)["run"] == "r"


def test_what_was_changed_is_not(tmp_path: Path) -> None:
    message = released(tmp_path)
    weight = message.tensors[0].clone()
    weight[0, 0] += 1e-3
    manifest = json.dumps({**json.loads(message.manifest), "party": "bank"})
    for wrong in (
        replace(message, tensors=(weight, *message.tensors[1:])),
        replace(message, manifest=manifest),
        replace(message, signature=bytes(64)),
    ):
        with pytest.raises(WireError, match="the signature is invalid"):
            verify_release(wrong, tmp_path / PUBLIC_KEY)


def test_another_coordinators_key(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    message = released(tmp_path)
    released(tmp_path / "other")
    with pytest.raises(WireError, match="belongs to another coordinator"):
        verify_release(message, tmp_path / "other" / PUBLIC_KEY)


def test_no_key_to_check_with(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="set `release_key` to its path"):
        verify_release(released(tmp_path), None)
    with pytest.raises(ConfigError, match="cannot be read"):
        verify_release(released(tmp_path), tmp_path / "missing.pub")


def test_heads_that_no_party_could_use_alone_are_not_promised() -> None:
    with pytest.raises(ConfigError, match="no party can use it alone"):
        check_releasable(LossConfig(method="vanilla"), ["shop"])
    check_releasable(LossConfig(method="vanilla"), [])


def trained_heads(model: Model) -> TrainedHeads:
    """Return the heads of a model as a coordinator has them."""
    return TrainedHeads(
        "r",
        model.method,
        model.task,
        model.prior,
        model.temperatures,
        model.loss,
        model.net,
        ("bank", "shop"),
    )


@pytest.mark.parametrize("with_weights", [True, False])
def test_D9_a_released_model_predicts_as_the_simulator(tmp_path: Path, with_weights: bool) -> None:
    """Heads of version 0.2 are released without weights of decisions."""
    bank, shop, y = small_tables.make_tables()
    both = {"bank": bank, "shop": shop}
    options: dict[str, Any] = {"embedding_dim": 8, "hidden_dim": 16, "full_threshold": 1.0}
    model = XVFLClassifier(epochs=2, device="cpu", **options).fit(both, y).model_
    load_decision_weights(model.method, {"local/bank": [0.75, 0.25], "local/shop": [1, 0]})
    heads = trained_heads(model)
    manifest = heads.party_manifest("bank")
    assert manifest["decision_weights"] == {"local/bank": [0.75, 0.25]}
    if not with_weights:
        del manifest["decision_weights"]
        load_decision_weights(model.method, {})
    manifest |= {"number": 1, "created": "2026-11-01"}
    message = sign_release(load_signing_key(RunDir(tmp_path)), manifest, heads.party_head(0))
    state = RunDir(tmp_path / "state").create()
    state.write_json(ENCODER, model.encoders["bank"].to_dict())
    party = party_folder(state, tmp_path / PUBLIC_KEY)
    settings = RunSettings("xvfl+", model.net, TrainConfig(), run="r")
    party.save_run(settings, model.full_threshold["bank"])
    weights = {f"net/bank/{key}": each for key, each in model.parties["bank"].state_dict().items()}
    Checkpoints(state).save("r", 5, weights, 3)
    party.install(message)
    bundle = RunDir(state / BUNDLE)
    expected = model.predict({"bank": bank}, "local", "bank").values
    found = Model.load(bundle).predict({"bank": bank}, "local", "bank").values
    np.testing.assert_allclose(found, expected, atol=1e-12)
    # The party also completes its own table, from its own columns.
    encoder = model.encoders["bank"]
    table = to_party_table(encoder.layout, encode(encoder, bank))
    save_own_cells(state, "bank", encoder, table, 0)
    shutil.rmtree(state / BUNDLE)
    (state / RELEASE).unlink()
    party.install(message)
    bank.to_csv(tmp_path / "bank.csv")
    options = CompleteOptions(id_column="customer")
    tables = {"bank": str(tmp_path / "bank.csv")}
    complete_run(state, tables, tmp_path / "completed", options, no_report)
    completed = pd.read_csv(tmp_path / "completed" / "bank.csv", index_col="customer")
    cells = pd.read_csv(tmp_path / "completed" / "bank.cells.csv")
    expected = Model.load(bundle).complete({"bank": bank}, "bank")
    assert isinstance(expected, pd.DataFrame)
    assert completed["age"].tolist() == expected["age"].tolist()
    assert set(cells["cue"]) <= {"own", "nothing"}


def test_D9_wrong_weights_of_decisions_are_rejected() -> None:
    parts = MethodParts(lambda width: torch.nn.Linear(width, 3), 2, 4, (0,))
    method = method_spec("xvfl+").build(resolved().loss, parts)
    wrong: list[dict[str, Any]] = [
        {"local/a": [1.0]},
        {"collaborative": [0.0, 1.0]},
        {"local/a": [0.0, float("nan")]},
    ]
    for each in wrong:
        with pytest.raises(RunError, match="expected [23] numbers, got"):
            load_decision_weights(method, each)


def party_folder(state: RunDir, key: Path) -> PartyFolder:
    config = PartyProcessConfig("localhost:1", "", Tls("", "", ""), release_key=str(key))
    return PartyFolder("bank", config, state)


def small_party(folder: Path) -> tuple[PartyFolder, ReleaseStore, Callable[[], ReleaseRecord]]:
    """Return a party that has trained, the coordinator's store, and how to sign a head for it."""
    bank, shop, y = small_tables.make_tables()
    options: dict[str, Any] = {"embedding_dim": 8, "hidden_dim": 16, "device": "cpu"}
    model = XVFLClassifier(epochs=1, **options).fit({"bank": bank, "shop": shop}, y).model_
    heads = trained_heads(model)
    main, state = RunDir(folder / "main").create(), RunDir(folder / "bank").create()
    state.write_json(ENCODER, model.encoders["bank"].to_dict())
    party = party_folder(state, main / PUBLIC_KEY)
    party.save_run(RunSettings("xvfl+", model.net, TrainConfig(), run="r"), 1.0)
    weights = {f"net/bank/{key}": each for key, each in model.parties["bank"].state_dict().items()}
    Checkpoints(state).save("r", 5, weights, 3)
    store = ReleaseStore(main)
    return party, store, lambda: heads.release(store, ["bank"])["bank"]


def test_numbers_increase_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ReleaseStore(RunDir(tmp_path))
    manifest = {"party": "shop", "run": "r"}
    first = store.release("shop", manifest, {})
    monkeypatch.setattr(time, "time", lambda: 0.0)
    second = store.release("bank", {**manifest, "party": "bank"}, {})
    third = store.revoke("shop", "")
    assert first.number < second.number < third.number
    assert ReleaseStore(RunDir(tmp_path)).pending(["shop", "bank", "other"]) == ["shop", "bank"]
    store.mark_delivered("shop", first.number)  # A reply to what was replaced meanwhile.
    store.mark_delivered("bank", second.number)
    assert store.pending(["shop", "bank"]) == ["shop"]
    with pytest.raises(RunError, match="nothing was released to this party"):
        store.revoke("other", "")
    (tmp_path / "releases.json").write_text('{"shop": {"number": 1}}')
    with pytest.raises(RunError, match="damaged .* move it away and release again"):
        store.records()


def test_an_older_release_is_never_accepted_again(tmp_path: Path) -> None:
    party, store, sign = small_party(tmp_path)
    sign()
    first = store.load("bank")
    party.install(first)
    bundle = RunDir(party.folder / BUNDLE)
    assert bundle.manifest()["release"] == json.loads(first.manifest)["number"]
    assert party.install(first)["run"] == "r"  # Delivered twice.
    second = sign()
    party.install(store.load("bank"))
    assert bundle.manifest()["release"] == second.number
    with pytest.raises(WireError, match="which is installed, got .* an older release is not"):
        party.install(first)
    store.revoke("bank", "a mistake")
    party.install(store.load("bank"))
    assert not bundle.path.exists()
    with pytest.raises(ModeError, match=r"revoked the head of run 'r' at .* \(a mistake\)"):
        open_bundle(party.folder)
    with pytest.raises(WireError, match="which was revoked"):
        party.install(first)
    revoked = json.loads(store.load("bank").manifest)["number"]
    for _ in range(2):
        sign()
        party.install(store.load("bank"))
        assert open_bundle(party.folder) is not None
        # Servers learn what was revoked before.
        state = read_release_state(party.folder / RELEASE)
        assert state.revocation == Revocation(revoked, "a mistake") and state.number > revoked


def test_a_release_of_another_run_or_without_training(tmp_path: Path) -> None:
    party, store, sign = small_party(tmp_path)
    sign()
    message = store.load("bank")
    settings = party.folder.read_json("run.json")
    settings["settings"]["run"] = "later"
    party.folder.write_json("run.json", settings)
    with pytest.raises(WireError, match="expected one of run 'later', this party's last, got 'r'"):
        party.install(message)
    (party.folder / "run.json").unlink()
    with pytest.raises(WireError, match="this party has taken part in none"):
        party.install(message)
    assert not party.folder.has("release.json")

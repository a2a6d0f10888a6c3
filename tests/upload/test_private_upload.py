"""Uploads with differential privacy: what a party of a federation releases, states and refuses."""

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.upload.local_federation import N_ROWS, LocalFederation
from xvfl.config import EncoderConfig, PrivacyConfig
from xvfl.errors import ConfigError
from xvfl.federation.upload.encoder_net import build_encoder
from xvfl.federation.upload.manifest import parse_manifest
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.service.release import load_signing_key
from xvfl.service.uploads.upload_store import UploadStore

PRIVATE = EncoderConfig(epsilon=4.0)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Return a trained federation; the shop has differential privacy, the bank has not."""
    made = LocalFederation(tmp_path_factory.mktemp("private"), {"shop": PRIVATE})
    load_signing_key(made.coordinator, None)
    assert made.run(release_to=("shop",)).evaluation is not None
    yield made
    made.close()


def upload(made: LocalFederation, party: str) -> UploadStore:
    """Open a party's stored upload."""
    path = made.coordinator / f"uploads/{party}/1/upload.json"
    return UploadStore(made.coordinator, parse_manifest(path.read_text(encoding="utf-8")))


def test_the_upload_has_one_noisy_embedding_of_a_row(federation: LocalFederation) -> None:
    store = upload(federation, "shop")
    manifest = store.manifest
    assert (manifest.epsilon, manifest.delta) == (4.0, 1e-5)
    assert (manifest.masked_copies, manifest.width, manifest.rows) == (0, 16, N_ROWS)
    views = store.views().float()
    assert views.shape == (N_ROWS, 1, 16)
    # Embeddings of norm 1 have a variance of 1/16 at most.
    assert float(views.std()) == pytest.approx(manifest.noise_std, rel=0.1)
    assert upload(federation, "bank").manifest.epsilon is None


def test_which_features_are_missing_is_hidden(federation: LocalFederation) -> None:
    assert (upload(federation, "shop").row_status() == 2).all()
    assert (upload(federation, "bank").row_status() < 2).any()


def test_the_encoder_is_not_trained(federation: LocalFederation) -> None:
    encoder = federation.services["shop"]._encoder
    table, net = encoder._load(None)
    first = build_encoder("shop", table.layout, PRIVATE, encoder._seeds).state_dict()
    assert all(torch.equal(first[key], value) for key, value in net.state_dict().items())


def test_epsilon_is_in_log_status_and_the_manifest_of_the_heads(
    federation: LocalFederation,
) -> None:
    (event,) = federation.events("differential_privacy")
    assert (event["epsilon"], event["n_releases"]) == (4.0, 1)
    assert federation.services["shop"].status()["privacy_epsilon"] == 4.0
    assert "privacy_epsilon" not in federation.services["bank"].status()
    encoders = federation.head.manifest()["encoders"]
    assert encoders["shop"]["epsilon"] == 4.0 and encoders["bank"]["epsilon"] is None


def test_a_released_head_predicts_without_noise(federation: LocalFederation) -> None:
    model = Model.load(RunDir(federation.folder / "shop" / "bundle"))
    assert model.differential_privacy is not None and not model.adds_noise
    table = federation.tables["shop"]
    first, second = (model.predict({"shop": table}, "local", "shop").values for _ in range(2))
    assert len(first) == N_ROWS + 30 and np.array_equal(first, second)
    order = table.iloc[::-1]
    again = model.predict({"shop": order}, "local", "shop").values
    np.testing.assert_allclose(again[::-1], first, rtol=1e-4)


def test_a_released_version_keeps_its_epsilon(federation: LocalFederation) -> None:
    federation.encoders["shop"] = replace(PRIVATE, epsilon=8.0)
    try:
        with pytest.raises(ConfigError, match="version 1, whose rows are released"):
            federation.start_party("shop")
    finally:
        federation.encoders["shop"] = PRIVATE


def test_a_coordinator_sets_no_epsilon(federation: LocalFederation) -> None:
    with pytest.raises(ConfigError, match=r"each party sets `epsilon` in \[encoder\]"):
        federation.run(retrain=True, privacy=PrivacyConfig(epsilon=1.0))


def test_values_beyond_the_noise_are_rejected(federation: LocalFederation) -> None:
    store = upload(federation, "shop")
    manifest = json.loads(store.manifest.to_json())
    quiet = parse_manifest(json.dumps({**manifest, "noise_std": 0.0}))
    other = UploadStore(RunDir(federation.folder / "other").create(), quiet)
    with pytest.raises(ValueError, match="expected numbers from -1 to 1"):
        n_rows = quiet.shape(0)[0]
        origin = torch.full((n_rows,), -1, dtype=torch.int32)
        other.add(0, origin, store.views()[:n_rows], store.row_status()[:n_rows])

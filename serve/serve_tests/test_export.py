"""`xvfl export`: runs, saved models and released heads become bundles."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from serve_tests.test_encoding import json_rows
from tests import small_tables
from tests.command_line import run_xvfl
from xvfl import XVFLClassifier
from xvfl.certs.release_key import PUBLIC_KEY
from xvfl.config import TrainConfig
from xvfl.federation.run_settings import RunSettings
from xvfl.model.export.bundle_export import export_run
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import ENCODER
from xvfl.service.checkpoints import Checkpoints
from xvfl.service.config import PartyProcessConfig
from xvfl.service.party_release import PartyFolder
from xvfl.service.release_store import ReleaseStore
from xvfl.service.trained_heads import TrainedHeads
from xvfl.wire.tls import Tls
from xvfl_serve import Predictor


def assert_same(predictor: Predictor, model: Model, bank: pd.DataFrame) -> None:
    expected = model.predict({"bank": bank}, "local", "bank").values
    answers = predictor.predict(json_rows(bank), "local", "bank")
    found = [list(each["probabilities"].values()) for each in answers]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    small_tables.train(small_tables.write_run_inputs(folder), folder / "run")
    return folder / "run"


def test_a_run(run: Path, tmp_path: Path) -> None:
    assert run_xvfl("evaluate", run).code == 0
    done = run_xvfl("export", run, "--out", tmp_path / "both.xvfl")
    assert (done.code, done.err) == (0, "")
    modes = "local bank, local shop, assisted bank, assisted shop, collaborative"
    assert modes in done.out and "next: xvfl serve" in done.out
    predictor = Predictor.load(tmp_path / "both.xvfl")
    bank, _, _ = small_tables.make_tables()
    assert_same(predictor, Model.load(RunDir(run)), bank)
    card = predictor.bundle.card
    assert "## Evaluation on" in card and "| age | number |" in card and "labeled" in card
    files = {name: each for name, each in predictor.bundle.files.items() if name.endswith("json")}
    texts = json.dumps(predictor.bundle.manifest) + b"".join(files.values()).decode()
    assert not [each for each in bank.index if f'"{each}"' in texts]


def test_a_released_head(tmp_path: Path) -> None:
    bank, shop, y = small_tables.make_tables()
    model = XVFLClassifier(epochs=2, embedding_dim=8).fit({"bank": bank, "shop": shop}, y).model_
    heads = TrainedHeads(
        "r",
        model.method,
        model.task,
        model.prior,
        model.temperatures,
        model.loss,
        model.net,
        ("bank", "shop"),
    )
    store = ReleaseStore(RunDir(tmp_path))
    record = heads.release(store, ["bank"])["bank"]
    state, public = RunDir(tmp_path / "state").create(), tmp_path / PUBLIC_KEY
    state.write_json(ENCODER, model.encoders["bank"].to_dict())
    config = PartyProcessConfig("localhost:1", "", Tls("", "", ""), release_key=str(public))
    party = PartyFolder("bank", config, state)
    settings = RunSettings("xvfl+", model.net, TrainConfig(), run="r")
    party.save_run(settings, model.full_threshold["bank"])
    weights = model.parties["bank"].state_dict()
    tensors = {f"net/bank/{key}": each for key, each in weights.items()}
    Checkpoints(state).save("r", 1, tensors, 1)
    party.install(store.load("bank"))
    out, key = tmp_path / "bank.xvfl", tmp_path / "release.key"
    predictor, check = export_run(state, out, None, key, bank)
    assert check is not None and check.rows == len(bank) and check.difference < 1e-5
    assert predictor.bundle.manifest["training"]["release"] == record.number
    assert list(predictor.outputs) == [("local", "bank")]
    assert predictor.bundle.manifest["training"]["run"] == "r"
    assert_same(Predictor.load(tmp_path / "bank.xvfl", public), model, bank)


def test_wrong_arguments(run: Path, tmp_path: Path) -> None:
    (tmp_path / "party").mkdir()
    (tmp_path / "party" / "encoder.json").write_text("{}")
    (tmp_path / "key.pem").write_text("none")
    out = ("--out", tmp_path / "a.xvfl")
    for arguments, text in (
        ((tmp_path / "none", *out), "no such model or run folder"),
        ((tmp_path / "party", *out), "no head was released to this party"),
        ((run, *out, "--party", "bnak"), "did you mean 'bank'"),
        ((run, *out, "--sign", tmp_path / "key.pem"), "cannot be read as a private key"),
        ((run, "--out", tmp_path / "none" / "a.xvfl"), "cannot be written"),
    ):
        done = run_xvfl("export", *arguments)
        assert done.code == 2 and text in done.err, done.err
    assert not (tmp_path / "a.xvfl").exists()

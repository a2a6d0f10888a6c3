"""A released encoder with bins of numbers predicts in a bundle what it does in torch."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from serve_tests.test_encoding import json_rows
from tests.data.test_bins import spiky
from xvfl.config import (
    NO_PROTECTION,
    EncoderConfig,
    LossConfig,
    NetConfig,
    TableOptions,
    TrainConfig,
)
from xvfl.data.encoder import TableEncoder
from xvfl.federation.upload.encoder_net import encoder_net_config, encoder_privacy
from xvfl.model.export.bundle_export import build_bundle
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.nets.numbers import NumberEmbeddings
from xvfl.options import resolve_options
from xvfl.primitives.task import Classification
from xvfl_serve.bundle import unpack
from xvfl_serve.predictor import Predictor

FRAME = spiky(600)


def released() -> Model:
    """Build an untrained model of one party, as a release installs it."""
    encoder = TableEncoder.fit(FRAME, TableOptions(), "bank")
    config = EncoderConfig(embedding_dim=16, hidden_dim=32)
    net, privacy = encoder_net_config(config), encoder_privacy(config)
    heads = resolve_options(
        NetConfig(embedding_dim=net.embedding_dim, hidden_dim=32),
        LossConfig(),
        TrainConfig(),
        privacy,
        federated=True,
        image=False,
        parties=2,
        rows=len(FRAME),
    )
    return Model(
        {"bank": encoder},
        {"bank": 1.0},
        Classification(["no", "yes"]),
        [0.5, 0.5],
        net,
        heads.loss,
        0,
        privacy=privacy,
        head_net=heads.net,
    )


def trained_with_gradients() -> Model:
    """Build an untrained model of one process, with members."""
    options = resolve_options(
        NetConfig(embedding_dim=8, hidden_dim=16, members=2),
        LossConfig(),
        TrainConfig(),
        NO_PROTECTION,
        federated=False,
        image=False,
        parties=1,
        rows=len(FRAME),
    )
    encoder = TableEncoder.fit(FRAME, TableOptions(), "bank")
    task = Classification(["no", "yes"])
    return Model({"bank": encoder}, {"bank": 1.0}, task, [0.5, 0.5], options.net, options.loss, 0)


@pytest.fixture(scope="module")
def model() -> Model:
    return released()


@pytest.mark.parametrize("build", [released, trained_with_gradients])
def test_bins_are_constants_of_the_exported_net(build: Callable[[], Model]) -> None:
    model = build()
    modules = model.parties["bank"].modules()
    (numbers,) = [each for each in modules if isinstance(each, NumberEmbeddings)]
    assert numbers.lower.shape[1] == 31 and numbers.frequent.shape[1] >= 2
    new = spiky(200, seed=1)
    expected = model.predict({"bank": new}, "local", "bank").values
    # Reading the bundle refuses operators that `xvfl export` did not write before.
    answers = Predictor(unpack(build_bundle(model))).predict(json_rows(new), "local", "bank")
    found = np.array([list(each["probabilities"].values()) for each in answers])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert expected.std(0).min() > 1e-3


def test_saved_and_loaded(model: Model, tmp_path: Path) -> None:
    model.save(RunDir(tmp_path / "saved").create())
    loaded = Model.load(RunDir(tmp_path / "saved"))
    expected = model.predict({"bank": FRAME}, "local", "bank").values
    assert (loaded.predict({"bank": FRAME}, "local", "bank").values == expected).all()

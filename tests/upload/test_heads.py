"""Heads on uploads: widths that differ by party, and options that uploads do not allow."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.upload.local_federation import ENCODER, LocalFederation
from xvfl.config import LossConfig, NetConfig, PrivacyConfig, TrainConfig
from xvfl.errors import ConfigError
from xvfl.federation.upload.heads import build_heads, check_head_options
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.options import resolve_options
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import Classification
from xvfl.service.release import load_signing_key

AUTO = PrivacyConfig()
N = 6


def test_narrower_embeddings_are_padded_with_zeros() -> None:
    rng = torch.Generator().manual_seed(0)
    narrow, wide = (torch.rand(N, 3, d, generator=rng).half() for d in (5, 8))
    options = resolve_options(
        NetConfig(embedding_dim=8, heads=1),
        LossConfig(),
        TrainConfig(),
        AUTO,
        federated=True,
        image=False,
        parties=2,
        rows=N,
    )
    task = Classification(["a", "b"])
    _, federation = build_heads({"n": narrow, "w": wide}, options, [0], task, image=False)
    federation.train(False)
    handles = torch.tensor([[2, 0], [1, 1]])
    held = torch.ones(2, 2, dtype=torch.bool)
    rows = Rows(handles, held, held, torch.zeros(2, dtype=torch.long), torch.ones(2))
    E = federation.embed(rows, ["plain", "masked"])
    assert E.shape == (2, 2, 2, 8)
    assert torch.equal(E[:, 0, 0, :5], narrow[[2, 1], 0].float()) and not E[:, 0, :, 5:].any()
    assert torch.equal(E[:, 1, 1], wide[[0, 1], 0].float()), "masked in training only"


@pytest.mark.parametrize("method", ["xvfl+", "laser"])
def test_a_party_with_narrower_embeddings_predicts_with_a_released_head(
    method: str, tmp_path: Path
) -> None:
    made = LocalFederation(tmp_path, {"shop": replace(ENCODER, embedding_dim=5)})
    load_signing_key(made.coordinator, None)
    made.run(release_to=("shop",), loss=LossConfig(method=method), net=NetConfig(heads=2))
    made.close()
    model = Model.load(RunDir(tmp_path / "shop" / "bundle"))
    predicted = model.predict({"shop": made.tables["shop"]}, "local", "shop").values
    assert np.isfinite(predicted).all()


@pytest.mark.parametrize(
    ("net", "loss", "privacy", "text"),
    [
        (NetConfig(members=2), LossConfig(), AUTO, "set `heads`"),
        (NetConfig(), LossConfig(), PrivacyConfig(epsilon=1.0), "each party sets `epsilon`"),
    ],
)
def test_options_that_uploads_do_not_allow(
    net: NetConfig, loss: LossConfig, privacy: PrivacyConfig, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        check_head_options(net, loss, privacy)


def test_methods_with_two_encoders_are_rejected(two_encoders: str) -> None:
    with pytest.raises(ConfigError, match="upload the embeddings of one"):
        check_head_options(NetConfig(), LossConfig(method=two_encoders), AUTO)

"""The coordinator's own party takes part in predictions, without budgets."""

import time
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from tests.service.test_service import COORDINATOR, SHOP, write
from xvfl.config import EncoderConfig
from xvfl.data.frames import read_frame
from xvfl.errors import ConfigError
from xvfl.federation.prediction_ledger import PredictionLimits
from xvfl.model.run_dir import RunDir
from xvfl.service.config import load_coordinator_config, load_party_config
from xvfl.service.coordinator import open_local_party as open_training_party
from xvfl.service.coordinator_service import CoordinatorService
from xvfl.service.party import open_party
from xvfl.service.party_inputs import PartyInputs
from xvfl.service.prediction.coordinator_prediction import CoordinatorPredictor
from xvfl.service.prediction.coordinator_process import open_local_party
from xvfl.service.prediction.party_prediction import PartyPredictor
from xvfl.service.trained_heads import load_federated_model
from xvfl.wire.in_process import InProcessTransport

PREDICTION = '[prediction]\nids = "labels.csv"\nlocal_table = "bank.csv"\n'


@pytest.mark.slow
def test_the_local_party_takes_part(tmp_path: Path) -> None:
    write(tmp_path)
    text = COORDINATOR.replace("epochs = 12", "epochs = 2")
    (tmp_path / "coordinator.toml").write_text(text + PREDICTION)
    (tmp_path / "shop.toml").write_text(SHOP.replace("PORT", "1"))
    config = load_coordinator_config(tmp_path / "coordinator.toml")
    assert config.local_party is not None
    local = replace(config.local_party, encoder=EncoderConfig(epochs=1))
    config = replace(config, local_party=local)
    shop_config = load_party_config(tmp_path / "shop.toml")
    service = CoordinatorService(config, show=False)
    shop_config = replace(shop_config, encoder=EncoderConfig(epochs=1))
    inputs = PartyInputs.load("shop", shop_config, RunDir(shop_config.state_dir).create())
    shop = open_party(inputs, lambda event: None).endpoint
    service.connect(
        {"shop": InProcessTransport(shop.hello, shop.handle), **open_training_party(service)}
    )
    assert service.run(Event()).evaluation is not None

    events, settings = list[object](), config.prediction
    assert settings is not None
    model = load_federated_model(config)
    ids = list(read_frame(settings.ids, "customer", "ids").index)
    state = RunDir(tmp_path / "prediction").create()
    predictor = CoordinatorPredictor(config, model, ids, state, events.append)
    opened = PartyPredictor(inputs, PredictionLimits(), events.append).endpoint
    transports = {
        "shop": InProcessTransport(opened.hello, opened.handle),
        **open_local_party(config, events.append),
    }
    pool = predictor.connect(transports)
    while len(pool.available()) < 2:
        time.sleep(0.01)
    rows = [predictor.find_row(each) for each in ("c000", "c100", "c239")]
    answers = predictor.answer(rows, "caller", time.monotonic() + 30)
    pool.close()
    # The first rows are held by the shop alone, the last ones by the bank alone.
    assert [each["parties"] for each in answers] == [["shop"], ["bank", "shop"], ["bank"]]
    text = (tmp_path / "coordinator.toml").read_text()
    (tmp_path / "coordinator.toml").write_text(text.replace('local_table = "bank.csv"\n', ""))
    config = load_coordinator_config(tmp_path / "coordinator.toml")
    assert config.prediction is not None
    with pytest.raises(ConfigError, match="prediction.local_table: expected the prediction table"):
        open_local_party(config, events.append)

"""One process of a party takes part in several federations."""

import signal
from pathlib import Path

import pytest

from tests.command_line import rejected_with
from tests.service.predicting_federation import Predicting, copy_trained, held_by, write_party
from xvfl.system.event_log import read_log

pytestmark = pytest.mark.slow


class Party(Predicting):
    """A coordinator, and the process of `bank` that is shared with another federation."""

    def start_coordinator(self) -> None:
        self.launch("coordinator")
        self.listen = int(self.event("main", "listening")["address"].rpartition(":")[2])
        write_party(self.folder, "bank", self.listen)
        self.port = int(self.event("main", "prediction_endpoint")["port"])

    def check_answers(self) -> None:
        self.wait_available("bank")
        answers = self.predict(held_by(self.folder, "bank")[:3]).predictions
        assert all(each["parties"] == ["bank"] for each in answers)


def test_an_error_in_one_federation_does_not_end_the_others(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    churn, fraud = (Party(copy_trained(tmp_path_factory, tmp_path / n)) for n in ("a", "b"))
    configs = [str(each.folder / "bank.toml") for each in (churn, fraud)]
    with churn, fraud:
        for each in (churn, fraud):
            each.start_coordinator()
        # The process runs in the folder of the first federation.
        churn.launch("bank", configs[1], serve=False)
        for each in (churn, fraud):
            each.check_answers()
        churn.signal("bank", signal.SIGTERM)
        assert churn.running["bank"].wait() == 0
        for each in (churn, fraud):
            assert read_log(each.folder / "bank")[-1]["event"] == "stopped"

        (churn.folder / "bank-new.csv").unlink()
        churn.launch("bank", configs[1], serve=False)
        fraud.check_answers()
        failed = churn.event("bank", "failed")
        assert "bank-new.csv" in failed["reason"] and failed["retry_in_s"] == 60
        churn.signal("bank", signal.SIGTERM)
        assert churn.running["bank"].wait() == 2
        assert "bank-new.csv" in (churn.folder / "bank.err").read_text()
        assert read_log(fraud.folder / "bank")[-1]["event"] == "stopped"


def test_federations_do_not_share_a_state_folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy_trained(tmp_path_factory, tmp_path)
    config = tmp_path / "bank.toml"
    assert "is used twice" in rejected_with("party", config, config)
    assert "expected one configuration" in rejected_with("party", config, config, "--once")

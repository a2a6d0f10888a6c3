"""Release between machines: commands as processes, over TLS and as files, revoked and replaced."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from serve_tests.server import serving, wait_until
from tests.command_line import CommandResult, rejected_with, run_xvfl
from tests.processes import free_port
from tests.service.test_service import COORDINATOR, SHOP, start, write
from xvfl.cli.output import FINISHED_WITHOUT
from xvfl.system.event_log import read_log
from xvfl_serve import Predictor

pytestmark = pytest.mark.slow


class Machines:
    """Two folders with the files of one side each, and a finished run without a release."""

    def __init__(self, folder: Path) -> None:
        self.main, self.shop = folder / "coordinator machine", folder / "shop machine"
        self.main.mkdir()
        (self.shop / "certs").mkdir(parents=True)
        write(self.main)
        port = free_port()
        config = COORDINATOR.replace("127.0.0.1:0", f"127.0.0.1:{port}", 1)
        config = config.replace('release_to = ["shop"]\n', "").replace("epochs = 12", "epochs = 2")
        config = 'signing_key = "certs/coordinator.release.key"\n' + config
        (self.main / "coordinator.toml").write_text(config)
        for name in ("ca.crt", "shop.crt", "shop.key", "coordinator.release.pub"):
            shutil.copy(self.main / "certs" / name, self.shop / "certs" / name)
        (self.main / "shop.csv").rename(self.shop / "shop.csv")
        party = SHOP.replace("PORT", str(port))
        party = party.replace("main/release.pub", "certs/coordinator.release.pub")
        (self.shop / "shop.toml").write_text(party)
        self.run_both("coordinator", "coordinator.toml")

    def run_both(self, *arguments: str, code: int = 0) -> str:
        """Run a command of the coordinator while the party runs; return its output."""
        main = start(self.main, *arguments)
        party = start(self.shop, "party", "shop.toml")
        out, err = main.communicate(timeout=600)
        assert main.returncode == code, err
        party_out, party_err = party.communicate(timeout=600)
        assert party.returncode == 0, party_out + party_err
        return out

    def release(self, *arguments: str) -> CommandResult:
        """Sign at the coordinator, without waiting for the party."""
        return run_xvfl("release", self.main / "coordinator.toml", *arguments, "--wait", "0")

    @property
    def file(self) -> Path:
        """The newest signed file for the party."""
        return self.main / "main" / "releases" / "shop.release"

    def predict(self) -> pd.DataFrame:
        """Predict at the party."""
        out = self.shop / "answers.csv"
        table = f"shop={self.shop / 'shop.csv'}"
        done = run_xvfl("predict", self.shop / "shop", table, "--out", out)
        assert done.code == 0, done.err
        return pd.read_csv(out)

    def prediction_error(self) -> str:
        """Return why the party cannot predict."""
        table = f"shop={self.shop / 'shop.csv'}"
        return rejected_with("predict", self.shop / "shop", table, "--out", self.shop / "none.csv")


def test_release_revoke_and_replace(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    shop = machines.shop / "shop.toml"
    assert not (machines.main / "main" / "release.key").exists()
    assert "ask the coordinator to run `xvfl release`" in machines.prediction_error()

    # The party is away: the release waits for it.
    done = machines.release("--to", "shop", "--to", "bank")
    assert done.code == FINISHED_WITHOUT, done.err
    assert "bank: release" in done.out and "shop.release" in done.out
    assert done.err.splitlines()[-1].startswith("not delivered yet: shop; run this command")
    bank = (machines.main / "main/bank", f"bank={machines.main / 'bank.csv'}")
    assert run_xvfl("predict", *bank, "--out", tmp_path / "bank.csv").code == 0
    first = tmp_path / "first.release"
    shutil.copy(machines.file, first)

    # It comes back and receives it over TLS.
    said = machines.run_both("release", "coordinator.toml", "--to", "shop", "--wait", "300")
    assert said.startswith("shop: release ") and "delivered" in said
    event = next(e for e in read_log(machines.shop / "shop") if e["event"] == "released")
    installed = json.loads((machines.shop / "shop/release.json").read_text())
    assert installed["number"] == event["number"] and installed["revoked"] is None
    answers = machines.predict()
    assert set(answers["mode"]) == {"local"} and len(answers) == 210

    # An earlier release is not accepted any more.
    assert "an older release is not accepted" in rejected_with("install", shop, first)

    # One command makes a tested bundle of the head and the party's nets.
    bundle = machines.shop / "shop.xvfl"
    done = run_xvfl("export", shop, "--out", bundle)
    assert done.code == 0, done.err
    assert "tested: ONNX equals torch on 210 own rows" in done.out
    assert Predictor.load(bundle).bundle.manifest["training"]["release"] == event["number"]

    # A revocation arrives as a file: nothing predicts with the head any more.
    state = machines.shop / "shop" / "release.json"
    with serving(bundle, "--release", str(state)) as server:
        assert server.predict({"spent": 1.0}).status == 200
        done = machines.release("--to", "shop", "--revoke", "--reason", "wrong labels")
        assert done.code == FINISHED_WITHOUT and "shop: revocation" in done.out
        done = run_xvfl("install", shop, machines.file)
        assert done.code == 0 and "the model is deleted" in done.out
        wait_until(lambda: server.ask("GET", "/v2/health/ready").status == 503)
        answer = server.predict({"spent": 1.0})
        assert answer.status == 410 and "wrong labels" in answer.json()["error"]
    assert "revoked the head of run" in machines.prediction_error()
    assert "wrong labels" in rejected_with("export", shop, "--out", tmp_path / "none.xvfl")
    assert "(wrong labels)" in rejected_with("serve", bundle, "--release", state)
    assert "which was revoked" in rejected_with("install", shop, first)
    assert "is revoked already" in machines.release("--to", "shop", "--revoke").err

    # A new release replaces it, as a file; the old bundle stays rejected.
    machines.release("--to", "shop")
    done = run_xvfl("install", shop, machines.file)
    assert done.code == 0 and "next: xvfl export" in done.out
    pd.testing.assert_frame_equal(machines.predict(), answers)
    assert "revoked release" in rejected_with("serve", bundle, "--release", state)
    # The same file again changes nothing.
    assert run_xvfl("install", shop, machines.file).code == 0
    check_wrong_files(machines, tmp_path)


def check_wrong_files(machines: Machines, folder: Path) -> None:
    """Files for others, damaged files and files of other coordinators are rejected."""
    shop = machines.shop / "shop.toml"
    for_bank = machines.main / "main" / "releases" / "bank.release"
    assert "expected one for 'shop', got one for 'bank'" in rejected_with("install", shop, for_bank)
    damaged = bytearray(machines.file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (folder / "damaged.release").write_bytes(damaged)
    assert "not a release, or damaged" in rejected_with("install", shop, folder / "damaged.release")
    assert "No such file" in rejected_with("install", shop, folder / "none.release")
    text = shop.read_text()
    shop.write_text(text.replace('release_key = "certs/coordinator.release.pub"\n', ""))
    assert "set `release_key` to its path" in rejected_with("install", shop, machines.file)
    shop.write_text(text)
    for arguments, error in (
        (("--to", "shpo"), "did you mean 'shop'"),
        ((), "`release_to` is empty"),
        (("--to", "shop", "--reason", "x"), "expected --revoke as well"),
    ):
        assert error in rejected_with("release", machines.main / "coordinator.toml", *arguments)
    (machines.main / "main/heads/1/manifest.json").unlink()
    assert "no finished run" in rejected_with(
        "release", machines.main / "coordinator.toml", "--to", "shop"
    )

"""The HTTP endpoint of prediction by the federation: tokens, callers, addresses."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.service.predicting_federation import COORDINATOR
from xvfl.certs import create_authority
from xvfl.cli.predict_client import predict_federated
from xvfl.errors import ConfigError, InputError, RunError, XVFLError
from xvfl.service.port_access import read_tokens
from xvfl.service.prediction.http_endpoint import open_endpoint
from xvfl.service.prediction.prediction_config import PartyPrediction
from xvfl_serve.errors import OverloadedError, RequestError, UnavailableError
from xvfl_serve.http.id_endpoint import IdEndpoint, PredictionService

ANSWER = {
    "prediction": 1,
    "mode": "collaborative",
    "parties": ["a"],
    "unreachable": {},
    "refused": [],
    "completed": 0.0,
    "notes": [],
}


class Recorder:
    """Answers requests and notes their callers."""

    def __init__(self) -> None:
        self.callers: list[str] = []
        self.error: Exception | None = None
        self.not_ready: list[Exception | None] = []
        """Errors of the next requests; None for one that is answered."""
        self.answers: list[dict[str, Any]] = []
        """Answers of the next rows, before `ANSWER`."""
        self.events: list[Any] = []

    def submit(
        self, rows: Sequence[int], caller: str, seconds: float
    ) -> "Future[list[dict[str, Any]]]":
        self.callers.append(caller)
        future: Future[list[dict[str, Any]]] = Future()
        if self.error is not None:
            future.set_exception(self.error)
        else:
            answers = [self.answers.pop(0) if self.answers else ANSWER for _ in rows]
            future.set_result(answers)
        return future

    def check_ready(self) -> None:
        if self.not_ready and (error := self.not_ready.pop(0)) is not None:
            raise error

    def endpoint(
        self,
        address: str = "127.0.0.1:0",
        tokens: str | None = None,
        certificate: tuple[str, str] | None = None,
    ) -> IdEndpoint:
        service = PredictionService(
            "collaborative",
            lambda each: 0,
            lambda note: ANSWER,
            self.submit,
            {"party": "a"},
            self.check_ready,
            (XVFLError,),
        )
        files = certificate or (None, None)
        section = PartyPrediction(
            "t.csv",
            address=address,
            tokens=tokens,
            certificate=files[0],
            private_key=files[1],
            max_rows=10,
        )
        return open_endpoint(section, service, self.events.append)


def post(
    port: int, token: str = "", context: ssl.SSLContext | None = None
) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers["Content-Type"] = "application/json"
    url = f"{'https' if context else 'http'}://127.0.0.1:{port}/predict"
    request = urllib.request.Request(url, b'{"ids": ["x"]}', headers)
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_tokens_name_the_caller(tmp_path: Path) -> None:
    file, recorder = tmp_path / "tokens", Recorder()
    file.write_text("web s3cret\nbatch other\n")
    endpoint = recorder.endpoint(tokens=str(file))
    assert post(endpoint.port)[0] == post(endpoint.port, "wrong")[0] == 401
    assert post(endpoint.port, "other")[0] == post(endpoint.port, "s3cret")[0] == 200
    assert recorder.callers == ["batch", "web"]
    endpoint.close()


def test_a_token_may_have_any_characters(tmp_path: Path) -> None:
    file, recorder = tmp_path / "tokens", Recorder()
    file.write_text("web schlüssel\n", encoding="utf-8")
    endpoint = recorder.endpoint(tokens=str(file))
    assert post(endpoint.port, "schlüssel".encode().decode("latin-1"))[0] == 200
    assert recorder.callers == ["web"]
    endpoint.close()


def test_the_endpoint_describes_itself(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("web s3cret\n")
    endpoint = Recorder().endpoint(tokens=str(tmp_path / "tokens"))
    base = f"http://127.0.0.1:{endpoint.port}"

    def get(path: str) -> str:
        request = urllib.request.Request(base + path, headers={"Authorization": "Bearer s3cret"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(response.read().decode())

    description = json.loads(get("/openapi.json"))
    ids = description["components"]["schemas"]["PredictRequest"]["properties"]["ids"]
    assert ids["maxItems"] == 10 and description["security"] == [{"token": []}]
    page = get("/docs")
    assert get("/") == page and f"curl {base}/predict" in page and "Model card" not in page
    for path in ("/predict/", "/other"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(path)
    endpoint.close()


def test_https(tmp_path: Path) -> None:
    authority = create_authority(tmp_path)
    authority.issue("coordinator", hosts=("127.0.0.1",))
    files = (str(tmp_path / "coordinator.crt"), str(tmp_path / "coordinator.key"))
    endpoint = Recorder().endpoint(certificate=files)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    assert post(endpoint.port, context=trusting)[0] == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        post(endpoint.port, context=ssl.create_default_context())
    with pytest.raises((OSError, http.client.HTTPException)):
        post(endpoint.port)
    endpoint.close()
    with pytest.raises(ConfigError, match=r"prediction.certificate: .* cannot be used"):
        Recorder().endpoint(certificate=(files[0], str(tmp_path / "ca.crt")))
    with pytest.raises(ConfigError, match="expected also `private_key`, or neither"):
        PartyPrediction("rows.csv", certificate=files[0])


def test_the_command_trusts_the_authority_of_the_federation(tmp_path: Path) -> None:
    create_authority(tmp_path / "certs").issue("coordinator", hosts=("127.0.0.1",))
    files = [str(tmp_path / "certs" / f"coordinator.{end}") for end in ("crt", "key")]
    endpoint = Recorder().endpoint(certificate=(files[0], files[1]))
    (tmp_path / "new-ids.csv").write_text("customer\nx\n")
    section = 'certificate = "certs/coordinator.crt"\nprivate_key = "certs/coordinator.key"\n'
    text = COORDINATOR.format(address=endpoint.port, deadline=2.0, task="classification")
    text += section
    (tmp_path / "coordinator.toml").write_text(text)
    given = (tmp_path / "coordinator.toml", None, None, tmp_path / "answers.csv")
    assert predict_federated(*given).rows == 1
    create_authority(tmp_path / "other")
    (tmp_path / "certs" / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes())
    with pytest.raises(RunError, match="certificate is not accepted .*CERTIFICATE_VERIFY_FAILED"):
        predict_federated(*given)
    endpoint.close()


def test_failures_are_answered_and_logged() -> None:
    recorder = Recorder()
    endpoint = recorder.endpoint()
    assert post(endpoint.port)[1]["predictions"][0]["id"] == "x"
    for error, status in (
        (OverloadedError("waited too long"), 503),
        (RunError("/path: secret"), 503),
        (ValueError("secret"), 500),
    ):
        recorder.error = error
        code, body = post(endpoint.port)
        assert code == status and "secret" not in body["error"]
    assert [each["event"] for each in recorder.events] == ["prediction_failed", "internal_error"]
    recorder.error = None
    assert post(endpoint.port)[0] == 200
    with pytest.raises(RunError, match="prediction.address: cannot listen"):
        recorder.endpoint(f"127.0.0.1:{endpoint.port}")
    endpoint.close()


def test_an_endpoint_that_is_not_ready_says_when_to_try_again() -> None:
    recorder = Recorder()
    endpoint = recorder.endpoint()
    url = f"http://127.0.0.1:{endpoint.port}"
    for path, error, status in (
        ("/v2/health/ready", UnavailableError("parties: 0 available"), 503),
        ("/v2/health/ready", RequestError("no head", status=409), 503),
        ("/predict", UnavailableError("parties: 0 available"), 503),
        ("/predict", RequestError("no head", status=409), 409),
    ):
        recorder.not_ready = [error]
        data = b'{"ids": ["x"]}' if path == "/predict" else None
        request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=60)
        assert raised.value.code == status
        assert raised.value.headers["Retry-After"] == ("5" if status == 503 else None)
        # Anybody may ask whether it is ready, so the answer has no names.
        with raised.value:
            assert path == "/predict" or raised.value.read() == b""
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=60) as response:
            assert response.status == 200
    assert recorder.callers == []
    endpoint.close()


def test_the_command_tries_again_and_keeps_refused_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnavailableError, "retry_after", 0)
    recorder = Recorder()
    endpoint = recorder.endpoint()
    (tmp_path / "new-ids.csv").write_text("customer\n" + "\n".join(map(str, range(23))))
    text = COORDINATOR.format(address=endpoint.port, deadline=2.0, task="classification")
    (tmp_path / "coordinator.toml").write_text(text + "max_rows = 10\n")
    refused = ANSWER | {"prediction": None, "mode": "refused", "parties": [], "refused": ["a"]}
    recorder.not_ready = [UnavailableError("parties: 0 available")] * 2
    # The first request is refused as a whole (status 429), then every other row.
    predicted = ANSWER | {"probabilities": {"1": 0.7, "2": 0.3}}
    mixed = [refused] * 10 + [refused, predicted] * 6 + [refused]
    for name in ("answers.csv", "answers.parquet"):
        recorder.answers = list(mixed)
        summary = predict_federated(tmp_path / "coordinator.toml", None, None, tmp_path / name)
        assert summary.rows == 23 and summary.modes == {"refused": 17, "collaborative": 6}
    frames = [pd.read_csv(tmp_path / "answers.csv"), pd.read_parquet(tmp_path / "answers.parquet")]
    for frame in frames:
        assert frame["prediction"].isna().sum() == frame["proba_1"].isna().sum() == 17
        assert frame["id"].tolist() == list(map(type(frame["id"][0]), range(23)))
    recorder.not_ready = [UnavailableError("parties: 0 available")] * 5
    with pytest.raises(RunError, match="parties: 0 available"):
        predict_federated(tmp_path / "coordinator.toml", None, None, tmp_path / "x.csv")
    endpoint.close()


def test_the_command_continues_after_an_error_and_after_refused_rows(tmp_path: Path) -> None:
    recorder = Recorder()
    endpoint = recorder.endpoint()
    (tmp_path / "new-ids.csv").write_text("customer\n" + "\n".join(map(str, range(25))))
    text = COORDINATOR.format(address=endpoint.port, deadline=2.0, task="classification")
    (tmp_path / "coordinator.toml").write_text(text + "max_rows = 10\n")
    refused = ANSWER | {"prediction": None, "mode": "refused", "parties": [], "refused": ["a"]}
    given = (tmp_path / "coordinator.toml", None, None, tmp_path / "answers.csv")
    kept = tmp_path / ".answers.csv.answers.jsonl"

    recorder.answers = [ANSWER] * 10 + [refused] * 15
    assert not predict_federated(*given).complete
    frame = pd.read_csv(given[-1])
    assert len(frame) == 25 and frame["prediction"].isna().sum() == 15
    # A crash leaves an unfinished line.
    kept.write_text(kept.read_text() + '[{"id": "1')
    recorder.not_ready = [None, RequestError("no head", status=409)]
    with pytest.raises(InputError, match="20 of 25 rows are kept; the same command continues"):
        predict_federated(*given)
    recorder.callers.clear()
    assert predict_federated(*given).complete and len(recorder.callers) == 1
    frame = pd.read_csv(given[-1])
    assert frame["id"].tolist() == list(range(25)) and frame["prediction"].notna().all()
    assert not kept.exists()
    endpoint.close()


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set prediction.tokens"):
        Recorder().endpoint("0.0.0.0:0")
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        Recorder().endpoint("7490")
    for text in ("", "name\n", "a x\nb x\n", "a x\na y\n"):
        (tmp_path / "tokens").write_text(text)
        with pytest.raises(ConfigError, match="a name and a token in each line"):
            read_tokens(str(tmp_path / "tokens"), "prediction.tokens")

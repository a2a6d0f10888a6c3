"""A client of the HTTP endpoint: predict many ids, in several requests."""

import json
import os
import ssl
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pandas as pd

from xvfl.cli.kept_answers import KeptAnswers
from xvfl.data.frames import read_frame
from xvfl.data.table_writer import TableWriter
from xvfl.errors import ConfigError, InputError, RunError
from xvfl.service.addresses import TOKEN_VARIABLE
from xvfl.service.config import CoordinatorConfig, PartyProcessConfig, load_config
from xvfl.service.port_access import read_tokens
from xvfl.service.prediction.prediction_config import PartyPrediction
from xvfl.system.report import Report, no_report
from xvfl_serve.row_report import REFUSED_MODE

MAX_TRIES, MAX_PAUSE_S = 5, 10.0
"""Tries of a request that cannot be answered now, and the longest pause between two."""
GRACE_S = 30.0
"""Seconds beyond the deadline until a request fails."""


@dataclass
class FederatedSummary:
    """What a prediction by the federation wrote."""

    rows: int = 0
    modes: Counter[str] = field(default_factory=Counter)
    unreachable: dict[str, str] = field(default_factory=dict)
    """Parties that did not take part in some answers, and why."""
    heads: Counter[str] = field(default_factory=Counter)
    """Rows by the head that predicted them: its number, digest, and the encoders' versions."""
    complete: bool = True
    """Whether no budget has refused rows; else the same call requests them again."""


def predict_federated(
    config_path: Path,
    ids_table: str | None,
    id_column: str | None,
    output: Path,
    report: Report = no_report,
) -> FederatedSummary:
    """Predict ids at the endpoint of a coordinator or party, and write the answers to a file.

    What was answered before an error or a stop is kept, and the same call continues after it.

    Parameters
    ----------
    config_path : Path
        Configuration of the running coordinator or party.
    ids_table : str or None
        Table with the ids; by default the ids of the configuration.
    id_column : str or None
        The id column, if it is not the one of the configuration.
    output : Path
        A .csv or .parquet file.
    report : callable
        Receives the progress.

    """
    target = _target(load_config(config_path), config_path)
    column = id_column or target.id_column
    ids = list(read_frame(ids_table or target.ids, column, "ids").index)
    summary, waiting = FederatedSummary(), list[dict[str, Any]]()
    columns: list[str] | None = None
    digest = blake2b("\n".join(ids).encode(), digest_size=16).hexdigest()
    kept = KeptAnswers(output, {"url": target.url, "rows": target.max_rows, "ids": digest})
    with TableWriter(output) as writer:
        for some in _chunks(ids, target.max_rows):
            if (answers := kept.get()) is None:
                try:
                    answers = _predict(target, some)
                except (InputError, RunError) as error:
                    text = f"{kept.rows} of {len(ids)} rows are kept; the same command continues"
                    kind = InputError if isinstance(error, InputError) else RunError
                    raise kind(f"{error}; {text}") from error
                kept.add(answers)
            summary.rows += len(answers)
            waiting += answers
            # The first row with a prediction tells the columns.
            if (
                columns
                or summary.rows == len(ids)
                or any(e["mode"] != REFUSED_MODE for e in answers)
            ):
                frame, waiting = _frame(waiting), []
                columns = columns or list(frame.columns)
                writer.add(frame.reindex(columns=columns))
            summary.modes.update(each["mode"] for each in answers)
            summary.heads.update(_head(each["model"]) for each in answers if "model" in each)
            for each in answers:
                summary.unreachable |= each["unreachable"]
            report(f"{summary.rows:,} rows", summary.rows / len(ids))
    summary.complete = kept.finish()
    return summary


@dataclass(frozen=True)
class _Target:
    url: str
    ca_certificate: str
    """CA that is trusted for https, beside those of the system."""
    token: str | None
    deadline: float
    max_rows: int
    ids: str
    id_column: str | None


def _target(config: CoordinatorConfig | PartyProcessConfig, path: Path) -> _Target:
    prediction = config.prediction
    if prediction is None or prediction.address is None:
        raise ConfigError(f"{path}: prediction: expected a section [prediction] with `address`")
    if isinstance(prediction, PartyPrediction):
        assert isinstance(config, PartyProcessConfig)
        ids, id_column = prediction.table, config.id_column
    else:
        assert isinstance(config, CoordinatorConfig)
        ids, id_column = prediction.ids, prediction.id_column or config.labels.id_column
    scheme = "http" if prediction.certificate is None else "https"
    return _Target(
        f"{scheme}://{prediction.address}",
        config.tls.ca_certificate,
        _token(prediction.tokens),
        prediction.deadline,
        prediction.max_rows,
        ids,
        id_column,
    )


def _token(path: str | None) -> str | None:
    """Return the token of the environment, or else the first one of the file that may predict."""
    if token := os.environ.get(TOKEN_VARIABLE):
        return token
    callers = read_tokens(path, "prediction.tokens")
    token = next((each.token for each in callers if "predict" in each.rights and each.token), None)
    if path is not None and token is None:
        raise ConfigError(f"prediction.tokens: {path} has no token; set {TOKEN_VARIABLE}")
    return token


def _predict(target: _Target, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Predict ids; try again while too few parties are available."""
    for _ in range(MAX_TRIES - 1):
        try:
            return _post(target, ids)
        except _TryAgainError as error:
            time.sleep(min(error.seconds, MAX_PAUSE_S))
    return _post(target, ids)


class _TryAgainError(RunError):
    """The endpoint cannot answer now."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds


def _post(target: _Target, ids: Sequence[str]) -> list[dict[str, Any]]:
    headers = {"Content-Type": "application/json"}
    if target.token:
        headers["Authorization"] = f"Bearer {target.token}"
    body = json.dumps({"ids": list(ids), "unknown": "prior"}).encode()
    request = Request(f"{target.url}/predict", body, headers)
    context = _tls_context(target) if target.url.startswith("https") else None
    try:
        with urlopen(request, timeout=target.deadline + GRACE_S, context=context) as response:
            answers: list[dict[str, Any]] = json.load(response)["predictions"]
    except HTTPError as error:
        refused = _body(error)
        if error.code == 429 and "predictions" in refused:
            rows: list[dict[str, Any]] = refused["predictions"]
            return rows
        text = f"{target.url}: {refused.get('error', f'HTTP status {error.code}')}"
        after = error.headers.get("Retry-After", "")
        if error.code == 503 and after.isdigit():
            raise _TryAgainError(text, float(after)) from error
        raise InputError(text) from error
    except (URLError, OSError, ValueError, KeyError) as error:
        if isinstance(getattr(error, "reason", error), ssl.SSLError):
            raise RunError(
                f"{target.url}: its certificate is not accepted ({error}); issue one for the host "
                "of `prediction.address` (xvfl certs issue --host) by the CA of `[tls]`"
            ) from error
        raise RunError(
            f"{target.url}: no answer ({error}); start it with --serve, and with this "
            "`prediction.address` in its configuration"
        ) from error
    return answers


def _tls_context(target: _Target) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(target.ca_certificate)
    except OSError as error:
        raise ConfigError(f"tls.ca_certificate: {target.ca_certificate} ({error})") from error
    return context


def _body(error: HTTPError) -> dict[str, Any]:
    """Return the JSON object of an error."""
    try:
        with error:
            body = json.load(error)
    except (ValueError, OSError):
        return {}
    return body if isinstance(body, dict) else {}


def _frame(answers: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Build the table of `xvfl predict`, with the parties that did not take part."""
    records = [
        {
            "id": each["id"],
            "prediction": each["prediction"],
            **{f"proba_{name}": p for name, p in each.get("probabilities", {}).items()},
            "mode": each["mode"],
            "parties": "+".join(each["parties"]),
            "unreachable": "+".join(each["unreachable"]),
            "completed": each["completed"],
            "notes": "; ".join(each["notes"]),
            **_model_cells(each.get("model")),
        }
        for each in answers
    ]
    frame = pd.DataFrame(records).set_index("id")
    if frame["prediction"].isna().any():
        # Keep whole numbers whole beside rows without a prediction.
        values = [each["prediction"] for each in answers]
        frame["prediction"] = pd.Series(values, frame.index, dtype=object)
    return frame


def _model_cells(model: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the cells that name the head of a row; none of a party's answer."""
    if model is None:
        return {}
    encoders = "; ".join(f"{name} {version}" for name, version in model["encoders"].items())
    return {"head": model["head"], "head_digest": model["digest"], "encoders": encoders}


def _head(model: Mapping[str, Any]) -> str:
    cells = _model_cells(model)
    encoders = f"; encoders {cells['encoders']}" if cells["encoders"] else ""
    return f"head {cells['head']} (digest {cells['head_digest']}{encoders})"


def _chunks(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]

"""The metrics of a status: its numbers, some of them by party or caller, with their meaning."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import Metric

from xvfl_serve.http.metrics import make_metric


class StatusMetric(NamedTuple):
    """A number of a status that becomes a metric."""

    text: str
    """Its meaning."""
    kind: str = "gauge"
    label: str = "party"
    """The label of values by party, or by another key."""


BOTH_SIDES = {
    "healthy": StatusMetric("1 if /health answers 200."),
    "step": StatusMetric("Training step."),
    "events": StatusMetric("Events of the log since this process started.", "counter", "event"),
    "log_events_lost": StatusMetric(
        "Events that could not be written to log.jsonl or the trail.", "counter"
    ),
    "certificate_days_left": StatusMetric("Days until this side's certificate ends."),
    "authority_days_left": StatusMetric(
        "Days until the certificate of its authority, or of an intermediate one, ends."
    ),
}
COORDINATOR = {
    "waiting": StatusMetric("1 before the run starts, while parties connect and ids are matched."),
    "party_matched": StatusMetric("Before the run starts: 1 if the party's ids are matched."),
    "party_present": StatusMetric("1 if the party is connected."),
    "party_clock_ahead_seconds": StatusMetric(
        "How far the party's clock was ahead of the coordinator's when it connected."
    ),
    "party_encoder_progress": StatusMetric(
        "Finished share of the training of the party's encoder; 1 if its upload is stored."
    ),
    "party_upload_version": StatusMetric("Version of the newest upload; 0 if there is none."),
    "party_upload_part": StatusMetric("Part of this version: 0, and 1 more for each addition."),
    "party_upload_rows": StatusMetric("Rows of the newest upload."),
    "party_upload_appended": StatusMetric("Its rows that no earlier part had."),
    "party_upload_replaced": StatusMetric("Its rows that replace those of an earlier part."),
    "party_upload_bytes": StatusMetric("Its bytes."),
    "party_upload_received": StatusMetric("Share of it that has arrived."),
    "party_upload_withdrawn_rows": StatusMetric("Withdrawn rows of it."),
    "party_upload_suspended": StatusMetric("1 if it is not used because the party is revoked."),
    "party_upload_stand_in": StatusMetric("1 if its terms let it stand in for the party."),
    "party_upload_deleted_version": StatusMetric(
        "Newest version that was withdrawn or has expired."
    ),
    "heads": StatusMetric("Trained heads."),
    "head": StatusMetric("Number of the current head; 0 if there is none."),
    "party_head_version": StatusMetric("Version of the upload that it was trained on."),
    "head_in_training": StatusMetric("Number of the head in training; 0 if there is none."),
    "head_in_training_progress": StatusMetric("Its finished share."),
    "predicting_head": StatusMetric("Number of the head that answers come from."),
    "predicting": StatusMetric("1 if this process answers prediction requests."),
    "party_stands_in": StatusMetric("1 if the stored upload can stand in for the party now."),
    "party_answer_seconds": StatusMetric("Seconds that the party's last answer took."),
    "epoch": StatusMetric("Completed epochs."),
    "epochs": StatusMetric("Configured epochs."),
    "best_score": StatusMetric(
        "Best validation score so far: the loss times -1, so higher is better."
    ),
    "finished": StatusMetric("1 when the head is trained."),
    "checkpoint_step": StatusMetric("Interactive training: step of the last checkpoint."),
    "seconds": StatusMetric("Interactive training: seconds since this process started."),
    "party_bytes_sent": StatusMetric("Interactive training: bytes sent to the party.", "counter"),
    "party_bytes_received": StatusMetric(
        "Interactive training: bytes received from the party.", "counter"
    ),
    "party_latency_seconds": StatusMetric("Interactive training: seconds of the last reply."),
}
PARTY = {
    "connected": StatusMetric("1 if the coordinator has proved its certificate on a connection."),
    "clock_ahead_seconds": StatusMetric(
        "How far the coordinator's clock was ahead of this party's when it connected."
    ),
    "matched_rows": StatusMetric("Rows matched with the coordinator."),
    "approvals_pending": StatusMetric("Requests that wait for `xvfl approve`."),
    "encoder_version": StatusMetric("Version of the encoder."),
    "encoder_progress": StatusMetric("Finished share of its training."),
    "encoder_failed": StatusMetric("1 if the encoder cannot be trained; the log has the reason."),
    "upload_rows": StatusMetric("Rows of the upload."),
    "upload_part": StatusMetric("Part of this version: 0, and 1 more for each addition."),
    "upload_appended": StatusMetric("Its rows that no earlier part had."),
    "upload_replaced": StatusMetric("Its rows that replace those of an earlier part."),
    "upload_bytes": StatusMetric("Bytes of the upload."),
    "upload_stored": StatusMetric(
        "1 if the coordinator has stored the whole upload, since this process started."
    ),
    "withdrawn_rows": StatusMetric("Rows that this party has withdrawn."),
    "receipts": StatusMetric("Receipts of the coordinator for withdrawals."),
    "requests_rejected": StatusMetric(
        "Requests of the coordinator that this party rejected.", "counter"
    ),
    "privacy_epsilon": StatusMetric("ε of the releases of a row, with differential privacy."),
    "privacy_delta": StatusMetric("δ of the releases of a row."),
    "privacy_n_releases": StatusMetric("Releases of a row."),
    "privacy_noise_multiplier": StatusMetric("Noise in multiples of the sensitivity."),
    "privacy_noise_std": StatusMetric("Standard deviation of the noise."),
    "prediction_requests_today": StatusMetric("Rows requested since midnight UTC."),
    "prediction_requests_allowed": StatusMetric("Rows that may be requested in a day."),
    "prediction_requests_of_a_row": StatusMetric("Most requests of one row."),
    "prediction_requests_of_a_row_allowed": StatusMetric("Requests of a row that are allowed."),
    "prediction_requests_by_caller": StatusMetric(
        "Rows requested since midnight UTC by each caller.", label="caller"
    ),
    "updates_applied": StatusMetric("Interactive training: updates of the party's net.", "counter"),
}
STATUS_METRICS = {**BOTH_SIDES, **COORDINATOR, **PARTY}
"""Metrics by the name of the status's entry; `xvfl_` precedes it, `_total` follows a counter's."""


def status_metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Return the metrics of a status; numbers that it does not have are left out."""
    for name, (text, kind, label) in STATUS_METRICS.items():
        value = status.get(name)
        if isinstance(value, Mapping):
            numbers = {key: each for key, each in value.items() if _is_number(each)}
            yield make_metric(f"xvfl_{name}", kind, text, label, numbers)
        elif isinstance(value, int | float):
            yield make_metric(f"xvfl_{name}", kind, text, label, value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)

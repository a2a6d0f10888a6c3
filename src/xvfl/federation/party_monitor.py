"""Notice parties whose values leave their own history, and decide what to do about them.

The limits are far from what honest training shows, and close enough for large errors: values in
wrong units, noise, a constant, repeated answers. docs/operate.md lists both. Without a history,
bounds apply that hold for the nets of every party.
Shapes: B rows, k parties, v views, d embedding width.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from xvfl.errors import PartyError
from xvfl.federation.party_statistics import (
    AnswerStatistics,
    History,
    answer_statistics,
    inconsistency,
    sketch,
)

AnomalyPolicy = Literal["warn", "clip", "leave_out"]
AnswerKind = Literal["embeddings", "completed embeddings"]
MAX_RECENT = 50
"""Anomalies that the status lists."""
MIN_ROWS = 16
"""Rows that a statistic needs."""
MAX_SCALE_CHANGE = 5.0
"""Factor by which the root mean square of an answer may differ from the history's."""
MAX_FIRST_RMS = 30.0
"""Largest root mean square without a history, relative to the other parties' or to 1."""
MIN_SPREAD = 1e-3
"""Smallest deviation of embeddings from their mean, relative to their root mean square."""
DRIFT_ANSWERS = 10
"""Answers of a history before drift is measured."""
MAX_DRIFT = 0.6
"""Largest drift of the second moments; see `History.drift`."""
MAX_CORRELATION = 0.95
"""Largest correlation with an answer for other rows."""
MAX_INCONSISTENCY = 0.5
"""Largest difference of two answers for the same rows and weights; see `inconsistency`."""
MAX_GRADIENT_CHANGE = 100.0
"""Factor by which the gradient of a party's embeddings may exceed the largest one so far."""
GRADIENT_STEPS = 20
"""Steps before gradients are compared."""
MAX_HARM, MAX_RELATIVE_HARM, MAX_HARM_SIGMAS = 0.1, 0.2, 4.0
"""How much a party may increase the validation loss: in nats, relative to the loss without it, and
in standard errors; an anomaly exceeds all three."""


@dataclass(frozen=True)
class Anomaly:
    """A suspicious value of one party."""

    party: str
    kind: str
    """scale, constant, drift, repeat, inconsistent, gradient or validation."""
    reason: str


class PartyMonitor:
    """Compare every answer with the party's history; log anomalies and apply the policy."""

    def __init__(
        self,
        policy: AnomalyPolicy = "warn",
        log_event: Callable[[dict[str, Any]], None] = lambda event: None,
    ) -> None:
        """Start without a history."""
        self.policy, self._log_event = policy, log_event
        self.epoch = 0
        """The current epoch, counted from 0."""
        self.counts: dict[str, int] = {}
        """Logged anomalies of each party."""
        self.last: dict[str, str] = {}
        """The last anomaly of each party."""
        self.recent: deque[dict[str, Any]] = deque(maxlen=MAX_RECENT)
        """The last logged anomalies: party, kind, epoch and reason."""
        self.explained: dict[str, float] = {}
        """Validation loss without each party, minus the loss with it."""
        self._harmful: set[str] = set()
        """Parties that exceeded the limits of the validation loss at their last check."""
        self.rms: dict[str, float] = {}
        """Root mean square of each party's last embeddings in training."""
        self._reported: set[tuple[str, str]] = set()
        self._histories: dict[tuple[str, AnswerKind], History] = {}
        self._gradients: dict[tuple[str, AnswerKind], tuple[int, float]] = {}
        self._evaluated: dict[str, tuple[Tensor, Tensor]] = {}

    def end_epoch(self) -> None:
        """Begin the next epoch; each kind of anomaly is logged once per party and epoch."""
        self.epoch += 1
        self._reported.clear()

    def forget(self, party: str) -> None:
        """Drop the history of a party that restarts from other weights."""
        for each in (self._histories, self._gradients):
            for key in [key for key in each if key[0] == party]:
                del each[key]
        self._evaluated.pop(party, None)
        self._harmful.discard(party)

    def check_answers(
        self,
        kind: AnswerKind,
        names: Sequence[str],
        values: Tensor,
        counted: Tensor,
        handles: Tensor,
        step: int,
        training: bool,
    ) -> frozenset[str]:
        """Check the answers of all parties to one request; with `clip`, scale them in place.

        Parameters
        ----------
        kind
            What the parties were asked for.
        names
            Names of the parties.
        values
            (B, k, v, d) the answers.
        counted
            (B, k) rows that each party observed.
        handles
            (B, k) row numbers at each party.
        step
            The training step.
        training
            Whether the request belongs to a training step.

        Returns
        -------
        frozenset of str
            The parties with an anomaly.

        Raises
        ------
        PartyError
            With the policy `leave_out`, for the parties with an anomaly.
        """
        statistics = answer_statistics(values, counted)
        found: list[Anomaly] = []
        if training:
            self._evaluated.clear()
        for i, name in enumerate(names):
            if int(statistics.rows[i]) < MIN_ROWS:
                continue
            first = values.detach()[counted[:, i], i, 0]
            history = self._histories.setdefault((name, kind), History())
            anomalies = self._check_one(name, kind, statistics, i, history)
            if (answer := sketch(first)) is not None and (training or kind == "embeddings"):
                repeats = history.repeats(answer, step) if training else history.correlation(answer)
                anomalies += self._check_repeat(name, kind, *repeats)
            if not training and kind == "embeddings":
                if answer is not None and name not in self._evaluated:
                    history.store_evaluation(answer)
                anomalies += self._check_consistency(name, first, handles[counted[:, i], i])
            if training and not anomalies:
                self._update(history, statistics, i)
            if training and kind == "embeddings":
                self.rms[name] = float(statistics.rms[i])
            found += anomalies
            if self.policy == "clip" and any(each.kind == "scale" for each in anomalies):
                limit = 2 * history.largest if history.count else _others(statistics.rms, i)
                _clip(values, i, limit)
        self._apply(found)
        return frozenset(each.party for each in found)

    def check_gradients(self, kind: AnswerKind, names: Sequence[str], gradients: Tensor) -> None:
        """Check the coordinator's gradients with respect to the answers. (B, k, …)"""
        rms = (gradients.flatten(2).square().sum(2).mean(0).sqrt() * len(gradients)).tolist()
        found = []
        for name, value in zip(names, rms, strict=True):
            steps, largest = self._gradients.get((name, kind), (0, 0.0))
            if steps >= GRADIENT_STEPS and value > MAX_GRADIENT_CHANGE * largest > 0:
                text = (
                    f"the gradient of its {kind} has norm {value:.3g}; the largest so far was "
                    f"{largest:.3g}"
                )
                found.append(Anomaly(name, "gradient", text))
                continue
            self._gradients[name, kind] = steps + 1, max(largest, value)
        self._apply(found)

    def check_validation(self, party: str, with_party: Tensor, without: Tensor) -> str | None:
        """Compare the loss of validation rows (n,) with and without a party.

        Return a reason to leave the party out, or None. The party must exceed the limits at two
        checks in a row: honest parties can exceed them while the head is hardly trained.
        """
        difference = with_party - without
        mean = float(difference.mean())
        error = float(difference.std()) / math.sqrt(max(len(difference), 1))
        self.explained[party] = -mean
        limit = max(MAX_HARM, MAX_RELATIVE_HARM * float(without.mean()), MAX_HARM_SIGMAS * error)
        if len(difference) < 2 * MIN_ROWS or mean <= limit:
            self._harmful.discard(party)
            return None
        if party not in self._harmful:
            self._harmful.add(party)
            return None
        text = (
            f"the validation loss is {float(with_party.mean()):.3f} with it and "
            f"{float(without.mean()):.3f} without it"
        )
        anomaly = Anomaly(party, "validation", text)
        self._report(anomaly)
        return describe(anomaly)

    def _check_one(
        self, name: str, kind: AnswerKind, statistics: AnswerStatistics, i: int, history: History
    ) -> list[Anomaly]:
        rms, spread = float(statistics.rms[i]), float(statistics.spread[i])
        # An honest completer may predict the same values for all rows.
        if spread < MIN_SPREAD and kind == "embeddings":
            return [Anomaly(name, "constant", f"all rows of its {kind} are equal")]
        if history.count:
            low, high = history.rms / MAX_SCALE_CHANGE, history.rms * MAX_SCALE_CHANGE
        else:
            low, high = 0.0, MAX_FIRST_RMS * max(1.0, _others(statistics.rms, i))
        if not low <= rms <= high:
            text = f"expected a root mean square from {low:.3g} to {high:.3g} in its {kind}"
            return [Anomaly(name, "scale", f"{text}, got {rms:.3g}")]
        enough = history.count >= DRIFT_ANSWERS and int(statistics.rows[i]) >= 2 * MIN_ROWS
        if enough and (drift := history.drift(statistics.moment[i])) > MAX_DRIFT:
            text = f"the second moments of its {kind} changed by {drift:.2f} at once"
            return [Anomaly(name, "drift", f"{text}; expected at most {MAX_DRIFT}")]
        return []

    def _check_repeat(
        self, name: str, kind: AnswerKind, correlation: float, step: int
    ) -> list[Anomaly]:
        """Judge the correlation with an answer of another step, or of the validation rows (−1)."""
        if correlation <= MAX_CORRELATION:
            return []
        earlier = f"step {step}, for other rows" if step >= 0 else "the validation rows"
        return [Anomaly(name, "repeat", f"its {kind} repeat those of {earlier}")]

    def _check_consistency(self, name: str, values: Tensor, handles: Tensor) -> list[Anomaly]:
        """Compare answers for the same rows since the last training step."""
        order = handles.argsort()
        handles, values = handles[order], values[order]
        if name not in self._evaluated:
            self._evaluated[name] = handles, values
            return []
        earlier, answers = self._evaluated[name]
        at = torch.searchsorted(earlier, handles).clamp(max=len(earlier) - 1)
        same = earlier[at] == handles
        if int(same.sum()) < MIN_ROWS:
            return []
        if inconsistency(answers[at[same]], values[same]) <= MAX_INCONSISTENCY:
            return []
        return [Anomaly(name, "inconsistent", "the same rows got different embeddings")]

    def _update(self, history: History, statistics: AnswerStatistics, i: int) -> None:
        moment = statistics.moment[i] if int(statistics.rows[i]) >= 2 * MIN_ROWS else None
        history.update(float(statistics.rms[i]), float(statistics.largest[i]), moment)

    def _apply(self, found: Sequence[Anomaly]) -> None:
        for each in found:
            self._report(each)
        if self.policy == "leave_out" and found:
            parties = {each.party: each for each in reversed(found)}
            raise PartyError.joined(
                [PartyError(describe(each), (name,), "wrong") for name, each in parties.items()]
            )

    def _report(self, anomaly: Anomaly) -> None:
        name, kind = anomaly.party, anomaly.kind
        if (name, kind) in self._reported:
            return
        self._reported.add((name, kind))
        self.counts[name] = self.counts.get(name, 0) + 1
        self.last[name] = f"{kind}, epoch {self.epoch + 1}"
        about = {"party": name, "kind": kind, "epoch": self.epoch + 1, "reason": anomaly.reason}
        self.recent.append(about)
        self._log_event({"event": "party_anomaly", **about, "policy": self.policy})


def describe(anomaly: Anomaly) -> str:
    """Describe an anomaly as the reason of an exclusion."""
    return f"party {anomaly.party!r} sent suspicious values ({anomaly.kind}): {anomaly.reason}"


def _others(rms: Tensor, i: int) -> float:
    """Return the median of the other parties' root mean squares; 1 without other parties."""
    others = torch.cat([rms[:i], rms[i + 1 :]])
    others = others[others > 0]
    return float(others.median()) if len(others) else 1.0


@torch.no_grad()
def _clip(values: Tensor, i: int, limit: float) -> None:
    """Scale rows and views of one party with a root mean square above the limit. In place."""
    rms = values[:, i].square().mean(-1, keepdim=True).sqrt()
    values[:, i] *= (limit / rms.clamp(min=limit)).to(values.dtype)

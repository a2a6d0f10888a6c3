"""Explain a trained model on labeled rows.

Shapes: n rows, k parties, C classes, S bootstrap samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from xvfl.data.sources import Source, encode, source_index, take_ids
from xvfl.errors import InputError, unknown
from xvfl.methods import require_mode
from xvfl.methods.pooling import without_completion
from xvfl.model.explain.bootstrap import (
    BEST,
    METRIC_NAMES,
    NEEDS_TWO_LABELS,
    Estimate,
    Floats,
    choose_metric,
    sample_rows,
)
from xvfl.model.explain.coalitions import Coalitions, coalitions
from xvfl.model.explain.explanation import (
    CompletionEffect,
    Explanation,
    FeatureImportance,
    PartyWorth,
)
from xvfl.model.explain.feature_groups import feature_groups
from xvfl.model.explain.row_changes import SMALLEST_CHANGE, largest_changes, row_changes
from xvfl.model.explain.variants import (
    PermutedFeatures,
    Variant,
    VariantPredictor,
)
from xvfl.model.model import Model
from xvfl.primitives.layout import any_image
from xvfl.primitives.seeding import derive_seed
from xvfl.system.report import Report, no_report
from xvfl.training.threads import limit_threads

EXAMPLES = 10
"""Number of rows whose completion is described, unless ids are given."""


@dataclass(frozen=True)
class ExplainOptions:
    """What to explain, and how precisely."""

    metric: str | None = None
    rows: Literal["all", "shared"] = "all"
    """`all` labeled rows, or those that every given party observes."""
    n_repeats: int = 5
    """Permutations of each feature; 0 leaves out the importance of features."""
    n_samples: int = 300
    """Bootstrap samples of the intervals."""
    max_rows: int = 1_500
    """Of more rows, a random sample is explained."""
    ids: Sequence[str] | None = None
    """Rows whose completion to describe; by default those that it changed most."""
    completion: bool = True
    """Whether to compute what completion changed."""


def explain(
    model: Model,
    sources: Mapping[str, Source],
    labels: pd.Series,
    options: ExplainOptions,
    report: Report = no_report,
) -> Explanation:
    """Explain a model on labeled rows, which should not be training rows.

    Parameters
    ----------
    model : Model
        A trained model whose method predicts collaboratively.
    sources : mapping of str to Source
        The tables of some or all parties.
    labels : Series
        Labels by id.
    options : ExplainOptions
        What to explain.
    report : callable, optional
        Receives what is being computed, and the finished share.

    Returns
    -------
    Explanation

    Raises
    ------
    InputError
        If no labeled row is in the tables, all labels are equal and the metric needs two, or an
        option is invalid.
    ModeError
        If the method does not predict collaboratively.
    """
    require_mode(model.method, "collaborative", model.loss.method)
    # Once for the whole computation: each change of the number of threads costs CPU time.
    with limit_threads(any_image(model.layouts), torch.device("cpu")):
        return _Explainer(model, sources, labels, options, report).run()


class _Explainer:
    def __init__(
        self,
        model: Model,
        sources: Mapping[str, Source],
        labels: pd.Series,
        options: ExplainOptions,
        report: Report,
    ) -> None:
        if options.rows not in ("all", "shared"):
            raise InputError(f"rows: {unknown('choice', str(options.rows), ['all', 'shared'])}")
        model.check_parties(sources)
        self.model, self.options, self.report = model, options, report
        self.metric, self.metric_function = choose_metric(options.metric, model.task)
        self.names = [name for name in model.encoders if name in sources]
        labels = _usable_labels(labels, model, {n: sources[n] for n in self.names})
        self.sources = {name: take_ids(sources[name], list(labels.index)) for name in self.names}
        self.encoded = {
            name: encode(model.encoders[name], self.sources[name]) for name in self.names
        }
        rows, federation = model.rows_of(self.encoded, list(labels.index))
        kept = self._chosen_rows(rows.seen.cpu().numpy(), list(labels.index))
        self.labels, self.rows = labels.iloc[kept], rows.take(torch.from_numpy(kept))
        self.y = model.task.encode(self.labels.to_numpy())
        _require_two_labels(self.metric, self.labels)
        self.predictor = VariantPredictor(model, self.rows, federation)
        rng = self._rng("bootstrap")
        self.counts = sample_rows(len(self.y), options.n_samples, rng)
        self.everyone = tuple(range(len(self.names)))
        self.done, self.total = 0, 1

    def run(self) -> Explanation:
        """Evaluate subsets of parties, permuted features and predictions without completion."""
        scores: list[Floats] = []
        subsets = coalitions(len(self.names), self._rng("orders"))
        groups = self._feature_groups()
        self.total = len(subsets.subsets) + len(groups) * self.options.n_repeats + 1
        # The subset of all parties comes last.
        for subset in subsets.subsets:
            proba = self._predict(Variant(subset), "subsets of parties")
            scores.append(self._score(proba))
        samples = np.stack(scores, 1)
        together = samples[:, -1]
        return Explanation(
            self.metric,
            len(self.y),
            float(samples[0, 0]),
            Estimate.of(together),
            self._worth(subsets, samples),
            self._importances(groups, together),
            self._completion_effect(proba),
            subsets.exact,
            list(self.model.classes),
        )

    def _worth(self, subsets: Coalitions, samples: Floats) -> list[PartyWorth]:
        """Compute the worth of each party from the metric of each subset (S, m)."""
        shapley = subsets.shapley(samples, self._rng("resampled orders"))
        nobody, together = samples[:, :1], samples[:, -1:]
        alone = samples[:, [subsets.index(party) for party in self.everyone]]
        others = [[i for i in self.everyone if i != party] for party in self.everyone]
        without = samples[:, [subsets.index(*each) for each in others]]
        best = BEST[self.metric]
        columns = (
            self.names,
            self.rows.seen.sum(0).tolist(),
            Estimate.joint(alone, best),
            Estimate.joint(without, best),
            Estimate.joint(together - without),
            Estimate.joint(shapley),
            _shares(shapley, together - nobody),
        )
        return [PartyWorth(*of_party) for of_party in zip(*columns, strict=True)]

    def _feature_groups(self) -> list[tuple[int, str, tuple[int, ...]]]:
        if not self.options.n_repeats:
            return []
        return [
            (party, name, features)
            for party, of_party in enumerate(self.names)
            for name, features in feature_groups(self.model.layouts[of_party])
        ]

    def _importances(
        self, groups: Sequence[tuple[int, str, tuple[int, ...]]], together: Floats
    ) -> list[FeatureImportance]:
        """Permute each feature among the rows of its party; most important first."""
        repeats, rng = self.options.n_repeats, self._rng("repeats")
        result = []
        for party, feature, features in groups:
            name, samples = self.names[party], []
            for repeat in range(repeats):
                order = self._permutation(party, feature, repeat)
                permuted = PermutedFeatures(party, features, order)
                proba = self._predict(
                    Variant(self.everyone, permuted=permuted), f"{name}: {feature}"
                )
                samples.append(self._score(proba))
            scores = np.stack(samples, 1)
            # Resample the repeats with the rows; sample 0 has each once.
            weights = rng.multinomial(repeats, np.full(repeats, 1 / repeats), len(scores)) / repeats
            weights[0] = 1 / repeats
            importance = Estimate.of(together - (weights * scores).sum(1))
            result.append(FeatureImportance(name, feature, importance))
        result.sort(key=lambda each: -each.importance.value)
        return result

    def _completion_effect(self, completed: NDArray[np.float64]) -> CompletionEffect | None:
        if not self.options.completion or without_completion(self.predictor.method) is None:
            return None
        full = self.rows.full.cpu().numpy()
        gaps = np.asarray(~full.all(1))
        if not gaps.any():
            return None
        observed = self._predict(Variant(self.everyone, completes=False), "completion")
        score = self.metric_function
        counts, y = self.counts[:, gaps], self.y[gaps]
        before, after = score(observed[gaps], y, counts), score(completed[gaps], y, counts)
        if self.options.ids is None:
            places = largest_changes(observed, completed, gaps, EXAMPLES)
        else:
            places = self._places_of(self.options.ids)
        return CompletionEffect(
            int(gaps.sum()),
            Estimate.of(before),
            Estimate.of(after),
            Estimate.of(after - before),
            _changed_labels(observed, completed),
            row_changes(
                self.model,
                self.sources,
                self.encoded,
                self.labels,
                places,
                full,
                observed,
                completed,
            ),
        )

    def _places_of(self, ids: Sequence[str]) -> list[int]:
        places = self.labels.index.get_indexer(pd.Index(list(ids))).tolist()
        for each, place in zip(ids, places, strict=True):
            if place < 0:
                raise InputError(
                    f"ids: {each!r} is not among the {len(self.labels)} explained rows; give ids "
                    "of labeled rows of the tables"
                )
        return places

    def _predict(self, variant: Variant, text: str) -> NDArray[np.float64]:
        self.report(text, self.done / self.total)
        self.done += 1
        return self.predictor.predict(variant)

    def _score(self, values: Floats) -> Floats:
        return self.metric_function(values, self.y, self.counts)

    def _permutation(self, party: int, feature: str, repeat: int) -> torch.Tensor:
        """Permute the rows that the party holds; others stay. (n,)"""
        held = (self.rows.handles[:, party] >= 0).nonzero().flatten().numpy()
        order = np.arange(len(self.y))
        order[held] = held[
            self._rng("permute", self.names[party], feature, repeat).permutation(len(held))
        ]
        return torch.from_numpy(order)

    def _chosen_rows(self, seen: NDArray[np.bool_], ids: list[str]) -> NDArray[np.int64]:
        chosen = np.flatnonzero(seen.all(1) if self.options.rows == "shared" else seen.any(1))
        if not len(chosen):
            raise InputError(
                "explain: no labeled row is observed by "
                f"{'every party' if self.options.rows == 'shared' else 'any party'}; check the ids"
            )
        limit = self.options.max_rows
        if len(chosen) <= limit:
            return chosen
        sample = self._rng("rows").choice(chosen, limit, replace=False)
        asked = np.isin(np.asarray(ids, dtype=object), list(self.options.ids or ()))
        return np.union1d(sample, chosen[asked[chosen]])

    def _rng(self, *key: str | int) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.model.random_state, "explain", *key))


def _usable_labels(labels: pd.Series, model: Model, sources: Mapping[str, Source]) -> pd.Series:
    """Keep the labels that the model can predict, of rows that some party holds."""
    known = model.task.known(labels.to_numpy())
    if not known.any():
        raise InputError(
            f"explain: none of the labels is a class of the model, {model.classes}; check their "
            "type: 1 is not '1'"
        )
    places = [source_index(source).get_indexer(labels.index) for source in sources.values()]
    held: pd.Series = labels[known & (np.stack(places) >= 0).any(0)]
    if not len(held):
        raise InputError("explain: the tables and the labels share no id; check the id columns")
    return held


def _require_two_labels(metric: str, labels: pd.Series) -> None:
    """Reject rows on which the metric is undefined, because all their labels are equal."""
    if metric in NEEDS_TWO_LABELS and labels.nunique() < 2:
        name, use = METRIC_NAMES[metric], NEEDS_TWO_LABELS[metric]
        raise InputError(
            f"explain: {name} needs rows with different labels, but the {len(labels):,} explained "
            f"rows all have the label {labels.iloc[0]!s}; give more labels, or use metric={use!r} "
            f"(--metric {use})"
        )


def _changed_labels(observed: Floats, completed: Floats) -> int:
    """Count the rows whose predicted class, or number, completion changed."""
    if observed.shape[1] > 1:
        return int((observed.argmax(1) != completed.argmax(1)).sum())
    return int((np.abs(observed - completed).sum(1) > SMALLEST_CHANGE).sum())


def _shares(shapley: Floats, worth: Floats) -> list[Estimate] | list[None]:
    """Divide by the worth of all parties (S, 1), unless that is 0 within its interval."""
    if not Estimate.of(worth[:, 0]).low > 0:
        return [None] * shapley.shape[1]
    return Estimate.joint(shapley / np.where(worth > 0, worth, np.nan))

"""The page of an explanation: one self-contained HTML file with tables and bars."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

from xvfl.model.explain.bootstrap import Estimate
from xvfl.model.explain.explanation import (
    Explanation,
    FeatureImportance,
    RowChange,
)
from xvfl.model.report.html_page import html_page, table_head

SHOWN_FEATURES = 12
"""Features of a party that are shown at once; others unfold."""
SHOWN_CELLS = 6
BARS = """
.bar{position:relative;height:1.1rem;min-width:8rem;background:var(--soft);border-radius:2px}
.bar i{position:absolute;top:.2rem;bottom:.2rem;background:#1b7f5c;border-radius:2px}
.bar i.zero{background:#a9b4bf} .bar i.less{background:#c8452f}
.bar b{position:absolute;top:.5rem;height:.1rem;background:var(--ink)}
.bar u{position:absolute;top:0;bottom:0;width:1px;background:#8a97a3}
td.bars{width:34%;vertical-align:middle} td small.ci{white-space:nowrap}
summary{cursor:pointer;color:var(--dim);padding:.5rem 0}
h3{font-size:1rem;margin:1.4rem 0 .3rem}
.moved{white-space:nowrap} code{font-size:.88em}
.cells code{display:inline-block;background:var(--soft);border-radius:3px;padding:.1rem .4rem;
margin:0 .3rem .25rem 0;overflow-wrap:anywhere}
@media(max-width:700px){td.bars{grid-column:1/-1;width:auto;padding:.3rem 0}
td.two{grid-column:span 2} td.cells{padding-top:.4rem} .moved{white-space:normal}}
"""


def page(explanation: Explanation, title: str) -> str:
    """Render the page."""
    about = f"""<p class="dim">{explanation.n_rows:,} labeled rows, the same for every figure.
Metric: {explanation.metric_name}. Below or beside each value is its
95 % interval, over rows.</p>"""
    return html_page(
        title,
        about,
        _summary(explanation),
        _parties(explanation),
        _features(explanation),
        _completion(explanation),
        _reading(explanation),
        style=BARS,
    )


def _summary(explanation: Explanation) -> str:
    together, name = explanation.together, explanation.metric_name
    best = max(explanation.worth, key=lambda each: each.alone.value)
    shares = [
        f"{html.escape(each.party)} {_percent(each.share)}"
        for each in sorted(explanation.worth, key=lambda each: -each.shapley.value)
        if each.share is not None
    ]
    text = f"Of what the parties add, {', '.join(shares)}." if shares else ""
    return f"""<div class="box"><p><b>All parties together reach {name} {_text(together)}; the best
party alone, {html.escape(best.party)}, reaches {_text(best.alone)}.</b></p>
<p>Without any party it is {explanation.nobody:.3f}. {text}</p></div>"""


def _parties(explanation: Explanation) -> str:
    scale = _Scale.of(each.shapley for each in explanation.worth)
    names = ("alone", "all but it", "it adds", "Shapley value", "share")
    lines = ""
    for each in sorted(explanation.worth, key=lambda each: -each.shapley.value):
        share = "" if each.share is None else _percent(each.share)
        lines += f"""<tr><td class="wide"><b>{html.escape(each.party)}</b>
<small>{each.rows:,} rows</small></td>
<td class="n" data-name="alone">{_cell(each.alone)}</td>
<td class="n" data-name="all but it">{_cell(each.without)}</td>
<td class="n" data-name="it adds">{_cell(each.adds, sign=True)}</td>
<td class="n" data-name="Shapley value">{_cell(each.shapley, sign=True)}</td>
<td class="n" data-name="share">{share}</td>
<td class="bars">{scale.bar(each.shapley)}</td></tr>"""
    return f"""<h2>What each party is worth</h2>
<p>Predictions of the trained model with every subset of the parties, on the same rows. A row that
no party of a subset observes gets the {"class prior" if explanation.classes else "mean label"}.
The 95 % intervals of each column hold jointly for all parties.</p>
<table>{table_head(("party", *names, ""), names)}
<tbody>{lines}</tbody></table>"""


def _features(explanation: Explanation) -> str:
    importances = explanation.importances
    if not importances:
        return ""
    scale, text = _Scale.of(each.importance for each in importances), ""
    for party in (each.party for each in explanation.worth):
        own = [each for each in importances if each.party == party]
        first, rest = own[:SHOWN_FEATURES], own[SHOWN_FEATURES:]
        more = (
            f"<details><summary>{len(rest)} more</summary>{_feature_table(rest, scale)}</details>"
            if rest
            else ""
        )
        text += f"<h3>{html.escape(party)}</h3>{_feature_table(first, scale)}{more}"
    return f"""<h2>What each feature is worth</h2>
<p>The decrease of {explanation.metric_name} when the cells of a feature are permuted among the rows
of its party. Each 95 % interval holds for its feature alone. Features that carry the same
information share their importance.</p>{text}"""


def _feature_table(features: Sequence[FeatureImportance], scale: "_Scale") -> str:
    lines = "".join(
        f"""<tr><td class="two">{html.escape(each.feature)}</td>
<td class="n" data-name="importance">{_cell(each.importance, sign=True)}</td>
<td class="bars">{scale.bar(each.importance)}</td></tr>"""
        for each in features
    )
    return f"<table><tbody>{lines}</tbody></table>"


def _completion(explanation: Explanation) -> str:
    effect = explanation.completion
    if effect is None:
        return ""
    numbers = not explanation.classes
    predicted, column = ("number", "prediction") if numbers else ("class", "probability")
    lines = "".join(_row(each) for each in effect.examples)
    metric = f"""From observed features alone the metric on
these rows is {_text(effect.observed)}; with missing features completed it is
{_text(effect.completed)}, a difference of {_text(effect.difference, sign=True)}."""
    if undefined := explanation.undefined_completion:
        metric = f"{html.escape(undefined)}."
    return f"""<h2>What completion changed</h2>
<p>{effect.rows:,} rows are not full at every party. {metric}
The predicted {predicted} changed in {effect.changed:,} rows. Completed values are
the model's estimates, not observations.</p>
<table>{table_head(("row", "label", column, "completed cells"))}
<tbody>{lines}</tbody></table>"""


def _row(row: RowChange) -> str:
    cells = [
        f"<code>{html.escape(cell.party)}.{html.escape(cell.column)} = "
        f"{html.escape(_short(cell.value))}</code>"
        for cell in row.cells
    ]
    more = len(cells) - SHOWN_CELLS
    hidden = (
        f" <details><summary>{more} more</summary>{' '.join(cells[SHOWN_CELLS:])}</details>"
        if more > 0
        else ""
    )
    if row.class_ is None:
        name, before, after = "prediction", f"{row.observed:.4g}", f"{row.completed:.4g}"
    else:
        before = f"{html.escape(str(row.class_))}: {row.observed:.2f}"
        name, after = "probability", f"{row.completed:.2f}"
    return f"""<tr><td><b>{html.escape(str(row.id))}</b></td>
<td class="n" style="text-align:left" data-name="label">{html.escape(str(row.label))}</td>
<td class="n" style="text-align:left" data-name="{name}"><span class="moved">
{before} → <b>{after}</b></span></td>
<td class="wide cells">{" ".join(cells[:SHOWN_CELLS])}{hidden}</td></tr>"""


def _reading(explanation: Explanation) -> str:
    sampled = (
        ""
        if explanation.exact
        else " With this many parties, orders are sampled; intervals include the sampling error."
    )
    metric = {
        "auroc": "How well the classes are ordered: 0.5 is chance, 1 is perfect.",
        "accuracy": "Share of rows whose predicted class is correct.",
        "log_loss": "Mean logarithm of the probability of the true class; 0 is perfect.",
        "r2": "1 minus the squared error over that of the mean label: 0 is as good as the mean, "
        "1 is perfect.",
        "squared_error": "Minus the mean squared error; 0 is perfect.",
        "absolute_error": "Minus the mean absolute error, in units of the label; 0 is perfect.",
    }[explanation.metric]
    return f"""<h2>How to read the figures</h2>
<dl><dt>{explanation.metric_name}</dt><dd>{metric}</dd>
<dt>alone, all but it</dt><dd>The metric of the trained model when only this party, or every
party but this one, takes part.</dd>
<dt>rows</dt><dd>Of the explained rows, those of which the party observes something.</dd>
<dt>it adds</dt><dd>All parties together, less all but this one. Parties with the same information
add little each, although one of them is needed.</dd>
<dt>Shapley value</dt><dd>The mean increase of the metric when the party joins some of the others,
over all orders of joining. The values of all parties add up to what they are worth
together.{sampled}</dd>
<dt>gray bars</dt><dd>The interval contains 0: on these rows, no worth was found.</dd></dl>
<p>The figures describe this trained model. A model that is trained without a party can compensate
for its absence.</p>"""


class _Scale:
    """Positions of values on bars of one width."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high if high > low else low + 1

    @classmethod
    def of(cls, estimates: Iterable[Estimate]) -> "_Scale":
        """Cover 0 and all intervals."""
        ends = [0.0]
        for each in estimates:
            ends += [end for end in (each.low, each.value, each.high) if end == end]
        return cls(min(ends), max(ends))

    def bar(self, estimate: Estimate) -> str:
        """Draw a bar from 0 to the value, and its interval."""
        zero, value = self._at(0.0), self._at(estimate.value)
        kind = "zero" if estimate.is_zero else "less" if estimate.value < 0 else ""
        left, width = min(zero, value), abs(value - zero)
        interval = ""
        if estimate.low == estimate.low:
            low, high = self._at(estimate.low), self._at(estimate.high)
            interval = f'<b style="left:{low:.2f}%;width:{high - low:.2f}%"></b>'
        return (
            f'<div class="bar"><i class="{kind}" style="left:{left:.2f}%;width:{width:.2f}%"></i>'
            f'{interval}<u style="left:{zero:.2f}%"></u></div>'
        )

    def _at(self, value: float) -> float:
        return 100 * (value - self.low) / (self.high - self.low)


def _cell(estimate: Estimate, sign: bool = False) -> str:
    return f'<b>{_number(estimate.value, sign)}</b><small class="ci">{_interval(estimate)}</small>'


def _text(estimate: Estimate, sign: bool = False) -> str:
    return f"{_number(estimate.value, sign)} ({_interval(estimate)})"


def _interval(estimate: Estimate) -> str:
    return f"{_number(estimate.low)} to {_number(estimate.high)}"


def _percent(share: Estimate) -> str:
    return _minus(f"{100 * share.value:.0f}") + " %"


def _number(value: float, sign: bool = False) -> str:
    text = _minus(f"{value:.3f}")
    return f"+{text}" if sign and round(value, 3) > 0 else text


def _minus(text: str) -> str:
    """Write a minus sign in place of a hyphen, and none before 0."""
    return text.replace("-", "" if float(text) == 0 else "−")


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else text[:23] + "…"

"""The page of an audit of an upload: one self-contained HTML file for a data-protection officer."""

import html
from collections.abc import Mapping, Sequence

from xvfl.audit.recovery import METRIC_NAMES, Measured, Metric
from xvfl.audit.sweep import DialResult
from xvfl.audit.upload_audit import NOTHING_KNOWN, UploadResult, recovery
from xvfl.audit.upload_descriptions import SECTIONS, Section, tried
from xvfl.model.report.html_page import definitions, html_page, made_with, picture, table_head

SMALL_GAIN = 0.05
"""Excess over the control up to which an attack counts as chance."""
DIAL_ATTACKS: dict[str, tuple[str, ...]] = {
    "0 rows": NOTHING_KNOWN,
    "10 rows": ("decoder, 10 rows",),
    "20 rows": ("decoder, 20 rows",),
    "50 rows": ("decoder, 50 rows",),
    "200 rows": ("decoder, 200 rows",),
    "stolen": ("stolen encoder",),
}
"""Columns of the table of dials, and the attacks of which the strongest is shown."""
REFERENCE_DIAL = "0.3.0"


def upload_page(result: UploadResult, command: str, plot: bytes | None = None) -> str:
    """Render the page; without a plot it has the tables alone."""
    parties = "".join(_party(result, name) for name in result.configured.measured)
    return html_page(
        "What a coordinator can read from an upload",
        """<p class="dim">A simulation on your own table: an encoder was trained, the upload
computed and attacked. No data left this machine.</p>""",
        _summary(result),
        _about(result),
        picture(plot, "Accuracy against recovery of columns, for every setting"),
        _dials(result),
        parties,
        _reading(),
        made=made_with(command, result.about["seconds"], "audit.json"),
    )


def _summary(result: UploadResult) -> str:
    found = {title: recovery(result.configured, some) for title, some in DIAL_ATTACKS.items()}
    items = "".join(
        f"<li>{html.escape(title)}: {each.value:.2f} (chance {each.control:.2f})</li>"
        for title, each in found.items()
        if each is not None
    )
    return (
        '<div class="box"><p><b>Embeddings reveal columns to the coordinator.</b> Recovery of '
        "columns with the configured upload (0 is nothing, 1 is the exact order of all rows), by "
        f"the number of known rows and with a stolen encoder:</p><ul>{items}</ul><p>Do not "
        "federate columns that the coordinator must not learn.</p></div>"
    )


def _about(result: UploadResult) -> str:
    about, encoder = result.about, result.about["encoder"]
    rows = {
        "Parties": ", ".join(
            f"{html.escape(name)} ({rows:,} rows, {about['held_out'][name]:,} held out)"
            for name, rows in about["parties"].items()
        ),
        "Encoder": html.escape(
            ", ".join(f"{name} {value}" for name, value in encoder.items() if value is not None)
        ),
    }
    return definitions(rows)


def _dials(result: UploadResult) -> str:
    header, lines = dial_table(result)
    heads = "".join(f'<th class="n">{html.escape(each)}</th>' for each in header[1:])
    body = "".join(
        f'<tr><td class="wide"><b>{html.escape(line[0])}</b></td>'
        + "".join(
            f'<td class="n" data-name="{html.escape(name)}">{html.escape(each)}</td>'
            for name, each in zip(header[1:], line[1:], strict=True)
        )
        + "</tr>"
        for line in lines
    )
    return f"""<h2>Accuracy and recovery, by setting</h2>
<p>Accuracy of heads trained on the upload, and recovery of columns by the strongest attack with
this number of known rows. 0.3.0 has the encoder and the masked copies of version 0.3.0.</p>
<table><thead><tr><th>setting</th>{heads}</tr></thead><tbody>{body}</tbody></table>"""


def dial_table(result: UploadResult) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of the table of all settings."""
    modes = list(result.configured.accuracy)
    shown = {
        title: attacks
        for title, attacks in DIAL_ATTACKS.items()
        if any(recovery(each, attacks) for each in result.results)
    }
    lines = []
    for each in result.results:
        values = [recovery(each, attacks) for attacks in shown.values()]
        figures = [f"{each.accuracy[mode]:.3f}" for mode in modes]
        figures += ["–" if value is None else f"{value.value:.2f}" for value in values]
        lines.append([each.dial, *figures])
    return ["setting", *modes, *shown], lines


def _party(result: UploadResult, name: str) -> str:
    reference = {
        (each.attack, each.metric): each.value
        for dial in result.results
        if dial.dial == REFERENCE_DIAL
        for each in dial.measured[name]
    }
    measured = result.configured.measured[name]
    sections = "".join(_section(section, measured, reference) for section in SECTIONS)
    return f"<h2>{html.escape(name)}</h2>{sections}"


def _section(
    section: Section, measured: Sequence[Measured], reference: Mapping[tuple[str, Metric], float]
) -> str:
    chosen = [each for each in measured if each.attack.startswith(section.attacks)]
    if not chosen:
        return ""
    lines, seen = "", set[str]()
    for each in chosen:
        lines += _line(each, reference.get((each.attack, each.metric)), each.attack not in seen)
        seen.add(each.attack)
    numbers = ("0.3.0", "chance", "this upload")
    return f"""<h3>{html.escape(section.title)}</h3><p>{html.escape(section.aim)}</p>
<table>{table_head(("What was tried", *numbers, ""), numbers)}<tbody>{lines}</tbody></table>"""


def _line(measured: Measured, reference: float | None, first: bool) -> str:
    text = f"<small>{html.escape(tried(measured.attack))}</small>" if first else ""
    gain = measured.excess > SMALL_GAIN
    tag = (
        '<span class="tag gain">above chance</span>' if gain else '<span class="tag">chance</span>'
    )
    old = "–" if reference is None else f"{reference:.2f}"
    return f"""<tr><td class="wide"><b>{html.escape(measured.attack)}</b>{text}
<small>{METRIC_NAMES[measured.metric]}</small></td>
<td class="n" data-name="0.3.0">{old}</td>
<td class="n" data-name="chance">{measured.control:.2f}</td>
<td class="n" data-name="this upload"><b>{measured.value:.2f}</b></td>
<td class="wide">{tag}</td></tr>"""


def _reading() -> str:
    return """<h2>How to read the figures</h2>
<dl><dt>mean |ρ| of numbers</dt><dd>Absolute value of Spearman's rank correlation of each number
column and the best guess of it: 0 is nothing, 1 is the exact order of all rows. The mean over all
columns.</dd>
<dt>mean |2·AUC − 1| of categories</dt><dd>The same for each category against all others.</dd>
<dt>R² of numbers</dt><dd>Share of the variance that is recovered: 1 is every value.</dd>
<dt>AUC</dt><dd>0.5 is a coin toss, 1 is certainty.</dd>
<dt>chance</dt><dd>The same attack on columns whose rows were shuffled. It is above 0 because the
best of many components counts.</dd></dl>
<p>Encoders and heads were trained for fewer steps than in a federation, the same with all settings.
An audit shows what these attacks reach on this table. It is no proof that other attacks reach
less.</p>"""


def configured_lines(result: DialResult) -> list[tuple[str, Measured]]:
    """Return the strongest figure of each attack and metric, with the party that it is about."""
    strongest: dict[tuple[str, str], tuple[str, Measured]] = {}
    for name, measured in result.measured.items():
        for each in measured:
            key = each.attack, each.metric
            if key not in strongest or each.excess > strongest[key][1].excess:
                strongest[key] = name, each
    return list(strongest.values())

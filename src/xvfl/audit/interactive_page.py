"""The page of an audit of interactive training: one HTML file for a data-protection officer."""

import html
from collections.abc import Sequence

from xvfl.audit.findings import METRIC_NAMES, Finding, worst_by_attack
from xvfl.audit.interactive_audit import AuditResult
from xvfl.audit.interactive_descriptions import SECTIONS, TRIED, Section, meaning
from xvfl.model.report.html_page import definitions, html_page, made_with, picture, table_head

TAGS = {
    "blocked": '<span class="tag">nothing learned</span>',
    "no gain": '<span class="tag same">no gain</span>',
    "gain": '<span class="tag gain">learns something</span>',
}


def page(result: AuditResult, command: str, plot: bytes | None = None) -> str:
    """Render the page; without a plot it has the tables alone."""
    findings = [each for each in worst_by_attack(result.findings) if shows(each)]
    sections = "".join(_section(section, findings) for section in SECTIONS)
    return html_page(
        "What participants can learn in interactive training",
        """<p class="dim">A simulation on your own tables: honest training was recorded, then
attacked. No data left this machine.</p>""",
        _summary(findings),
        _about(result),
        picture(plot, "Each attack: own data, no protection, with protection"),
        sections,
        _reading(),
        made=made_with(command, result.about["seconds"], "audit.json"),
    )


def shows(finding: Finding) -> bool:
    """Tell whether a finding is worth a line: exactly recovered rows only where there are any."""
    return finding.key.metric != "rows" or max(finding.unprotected, finding.protected) > 0


def _summary(findings: Sequence[Finding]) -> str:
    gains = {each.key.attack for each in findings if each.verdict == "gain"}
    tried = {each.key.attack for each in findings}
    items = "".join(
        f"<li>{html.escape(section.remains)}</li>"
        for section in SECTIONS
        if gains & set(section.attacks)
    )
    remains = f"<p>What remains:</p><ul>{items}</ul>" if items else ""
    return (
        f'<div class="box"><p><b>{len(tried)} attacks were tried. With the configured protection '
        f"{len(tried) - len(gains)} give the attacker nothing beyond its own data; {len(gains)} "
        f"still do.</b></p>{remains}</div>"
    )


def _about(result: AuditResult) -> str:
    about = result.about
    parties = ", ".join(
        f"{html.escape(name)} ({rows:,} rows)" for name, rows in about["parties"].items()
    )
    rows = {
        "Parties": parties,
        "Training rows": f"{about['training_rows']:,}",
        "With protection": html.escape(about["configured"]["protection"]),
        "No protection": html.escape(about["off"]["protection"]),
        "Attacker knows": f"{about['known_labels']} labels, or the features of "
        f"{about['known_rows']} rows, where the attack says so",
    }
    return definitions(rows)


def _section(section: Section, findings: Sequence[Finding]) -> str:
    lines = ""
    for attack in section.attacks:
        of_attack = [each for each in findings if each.key.attack == attack]
        lines += "".join(_line(each, first=place == 0) for place, each in enumerate(of_attack))
    if not lines:
        return ""
    numbers = ("own data", "no protection", "with protection")
    return f"""<h2>{html.escape(section.title)}</h2><p>{html.escape(section.aim)}</p>
<table>{table_head(("What was tried", *numbers, "What it means"), numbers)}
<tbody>{lines}</tbody></table>
<div class="box"><p><b>What remains.</b> {html.escape(section.remains)}</p></div>"""


def _line(finding: Finding, first: bool) -> str:
    key = finding.key
    tried = f"<small>{html.escape(TRIED[key.attack])}</small>" if first else ""
    who = f"{key.attacker} → {key.target}"
    return f"""<tr><td class="wide"><b>{html.escape(key.attack)}</b>{tried}
<small>{html.escape(who)} · {METRIC_NAMES[key.metric]}, chance {finding.chance:.2f}</small></td>
<td class="n" data-name="own data">{finding.without_federation:.2f}</td>
<td class="n" data-name="no protection">{finding.unprotected:.2f}</td>
<td class="n" data-name="with protection"><b>{finding.protected:.2f}</b></td>
<td class="wide">{TAGS[finding.verdict]} {html.escape(meaning(finding))}</td></tr>"""


def _reading() -> str:
    return """<h2>How to read the figures</h2>
<dl><dt>own data</dt><dd>What the same attacker reaches without the federation: a party with its own
columns, the coordinator with the labels.</dd>
<dt>AUC</dt><dd>How well labels are ordered: 0.5 is a coin toss, 1 is every label. With several
classes, the class that is attacked most successfully or, for trained classifiers, the mean.</dd>
<dt>R² of numbers</dt><dd>Share of the variation that is recovered: 0 is nothing, 1 is every
value.</dd>
<dt>accuracy of categories</dt><dd>Share of categories guessed correctly; chance is the most
frequent category.</dd>
<dt>rows recovered exactly</dt><dd>Share of rows with every category correct and every number within
1 % of its range.</dd></dl>
<p>For each attack the party with the largest gain is shown. A simulation shows what these attacks
reach on these tables. It is no proof that other attacks reach less.</p>"""

"""The page of an inspection: one self-contained HTML file with problems, columns and overlap."""

import html

from xvfl.data.schema import ColumnSummary
from xvfl.dataset.inspection import Inspection, Problem
from xvfl.model.report.html_page import html_page, table_head

CELLS = """
td.text{overflow-wrap:anywhere} h2+p{margin-top:0}
@media(max-width:700px){td.text{grid-column:1/-1} td.wide{font-weight:600}
td{min-width:0;overflow-wrap:anywhere}}
"""


def inspection_page(found: Inspection) -> str:
    """Render the page."""
    return html_page(
        f"Inspection of {', '.join(found.rows) or 'tables'}",
        _problems(found.problems()),
        *(_table(found, name) for name in found.columns),
        _overlap(found),
        style=CELLS,
    )


def _problems(problems: list[Problem]) -> str:
    if not problems:
        return '<div class="box"><p><b>Nothing found that may be wrong.</b></p></div>'
    errors = sum(each.level == "error" for each in problems)
    lines = "".join(
        f"""<tr><td><span class="tag {"gain" if each.level == "error" else "same"}">{each.level}
</span></td><td><b>{html.escape(each.table)}</b></td><td><b>{html.escape(each.column)}</b></td>
<td class="wide text" style="font-weight:inherit">{html.escape(each.text)}</td></tr>"""
        for each in problems
    )
    return f"""<div class="box"><p><b>{_count(errors, "error")} and
{_count(len(problems) - errors, "warning")}.</b> Errors keep the tables from being used.</p></div>
<table>{table_head(("", "table", "column", "what may be wrong, and what to do"))}
<tbody>{lines}</tbody></table>"""


def _table(found: Inspection, name: str) -> str:
    lines = "".join(map(_column, found.columns[name]))
    numbers = ("missing", "distinct")
    return f"""<h2>{html.escape(name)}</h2><p class="dim">{found.rows.get(name, 0):,} rows</p>
<table>{table_head(("column", "kind", "missing", "distinct", "encoding", "values"), numbers)}
<tbody>{lines}</tbody></table>"""


def _column(column: ColumnSummary) -> str:
    return f"""<tr><td class="wide text"><b>{html.escape(column.name)}</b></td>
<td>{html.escape(column.kind)}</td><td class="n" data-name="missing">{column.missing:.1%}</td>
<td class="n" data-name="distinct">{column.distinct:,}</td>
<td class="text">{html.escape(column.encoding)}</td>
<td class="text">{html.escape(", ".join(column.examples))}</td></tr>"""


def _overlap(found: Inspection) -> str:
    lines = "".join(
        f"""<tr><td class="wide"><b>{html.escape(name)}</b></td>
<td class="n" data-name="rows">{counts["rows"]:,}</td>
<td class="n" data-name="shared">{counts["shared"]:,}</td></tr>"""
        for name, counts in found.overlap.items()
    )
    heading = table_head(("table", "rows", "shared"), ("rows", "shared"))
    return lines and f"<h2>Rows by table</h2><table>{heading}<tbody>{lines}</tbody></table>"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

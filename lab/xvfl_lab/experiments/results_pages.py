"""The pages of results: a summary, the claims, the standings, and a page for each figure."""

import inspect
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from xvfl.errors import RunError
from xvfl.version import VERSION
from xvfl_lab.experiments import plots, standings, tuning_tables
from xvfl_lab.experiments.claims import (
    CLAIMS,
    GRADES,
    PAPER,
    Answer,
    Evidence,
    Runs,
    lambda_table,
)
from xvfl_lab.experiments.compare import difference, mean
from xvfl_lab.experiments.figure_cache import read, read_record
from xvfl_lab.experiments.figure_plot import draw_once, save_picture
from xvfl_lab.experiments.figure_tables import (
    JUDGED,
    judged,
    markdown_row,
    markdown_table,
    metric_of,
    points,
    standing,
)
from xvfl_lab.experiments.figures import FIGURES, FULL, OURS, PUBLISHED
from xvfl_lab.experiments.reproduce import (
    SPECIAL,
    Request,
    load,
    page,
    require_writable,
    write_numbers,
)
from xvfl_lab.experiments.run_store import RunStore
from xvfl_lab.experiments.runner import Result
from xvfl_lab.files import write_text

STANDINGS = "standings.png"
IMAGE_FIGURES = {"images": "two", "images-four-parties": "four"}
"""The figures of images with the losses and nets of version 0.3: the number of parties."""
PICTURE = f"![Lead of xvfl+ over every rival]({STANDINGS})\n\n"
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
TEMPLATES = Path(__file__).with_name("templates")
"""Texts of the pages, in Markdown; names in braces are filled in."""

Stores = dict[str, RunStore]
"""The stored runs, by data set."""


def complete_figures(out: Path, stores: Stores) -> list[Request]:
    """List the figures of which all runs are stored."""
    requests = (Request(figure, dataset, False, out) for figure in FIGURES for dataset in stores)
    return [
        each
        for each in requests
        if (store := stores[each.dataset]).results and not store.missing(each.jobs())
    ]


def write_pages(out: Path, pages: Path) -> Path:
    """Write all pages from the runs of a folder; return the path of the summary.

    Numbers (`.json`) go to the folder of the runs, pictures to the folder of the pages.
    """
    stores = {dataset: Request("", dataset, False, out).store() for dataset in FULL}
    requests = complete_figures(out, stores)
    special = {name: record for name in SPECIAL if (record := read_record(out / name, name))}
    if not requests and not special:
        raise RunError(
            f"{out}: has no complete figure (those of --quick do not count); compute one, or "
            "choose another folder with --out"
        )
    require_writable(pages)
    runs: dict[tuple[str, str], list[Result]] = {}
    sections: dict[str, list[str]] = {}
    for request in requests:
        results, about = load(request, stores[request.dataset])
        write_numbers(request, results, about, pages)
        runs[request.figure, request.dataset] = results
        body = page(request, results, about, f"{request.name}.png")
        sections.setdefault(request.figure, []).extend([f"## {request.dataset}", "", *body])
    for figure, body in sections.items():
        caption = inspect.getdoc(FIGURES[figure]) or ""
        _write_page(pages / f"{figure}.md", _title(figure), "\n".join([caption, "", *body]))
    for name, record in special.items():
        _write_page(pages / f"{name}.md", _title(name), _special(name, record, out, pages))
    evidence = Evidence(runs, {name: record["figures"] for name, record in special.items()})
    answers = {name: claim.judge(evidence) for name, claim in CLAIMS.items()}
    compared = standings.standings(runs)
    if compared:
        save_picture(plots.standings(compared), pages / STANDINGS)
    _write_page(pages / "claims.md", "The paper's claims", _claims(answers, evidence))
    _write_page(pages / "standings.md", "Where xvfl+ stands", _standings(runs, compared))
    names, incomplete = [*sections, *special], _incomplete(stores, special)
    summary = _summary(answers, _advice(runs, compared), names, incomplete)
    _write_page(pages / "index.md", "Results", summary)
    return pages / "index.md"


def _write_page(path: Path, title: str, body: str) -> None:
    text = _fill("page", version=VERSION, title=title, body=body)
    write_text(path, text.rstrip() + "\n")


def _title(figure: str) -> str:
    return figure.replace("-", " ").capitalize()


def _special(name: str, record: dict[str, Any], out: Path, pages: Path) -> str:
    """Lay out a figure that is not a grid of runs, with its tables; draw it from its arrays."""
    picture = pages / name / f"{name}.png"
    if read(out / name, name) is not None:
        draw_once(out / name, name, SPECIAL[name].plot, picture)
    shown = f"![{_title(name)}]({name}/{name}.png)" if picture.exists() else ""
    tables = out / name / f"{name}.md"
    text = tables.read_text(encoding="utf-8") if tables.exists() else ""
    caption = SPECIAL[name].caption
    return _fill("special", name=name, caption=caption, picture=shown, tables=text, **record)


def _fill(template: str, **parts: object) -> str:
    return (TEMPLATES / f"{template}.md").read_text(encoding="utf-8").format(**parts)


def _summary(answers: dict[str, Answer], advice: str, names: Sequence[str], incomplete: str) -> str:
    counts = Counter(answer.verdict for answer in answers.values())
    rows = []
    for name, answer in answers.items():
        claim, link = CLAIMS[name], f"[{name}](claims.md#{name.lower()})"
        rows.append([link, claim.text, f"**{answer.verdict}**", claim.paper, answer.measured])
    return _fill(
        "index",
        claims=WORDS[len(answers)],
        counts=", ".join(
            f"{WORDS[counts[each]]} {'is' if counts[each] == 1 else 'are'} {each}"
            for each in GRADES
            if counts[each]
        ),
        verdicts="\n".join(map(markdown_row, rows)),
        advice=advice,
        links=", ".join(f"[{_title(name).lower()}]({name}.md)" for name in names),
        incomplete=incomplete,
    )


def _advice(runs: Runs, compared: standings.Standings) -> str:
    if not compared:
        return ""
    rows = standings.against_rivals(compared)
    verdicts = Counter(verdict for _, _, verdict, _ in rows)
    rival, times = Counter(nearest.rival for *_, nearest in rows).most_common(1)[0]
    return _fill(
        "advice",
        comparisons=len(rows),
        **{verdict: verdicts[verdict] for verdict in ("ahead", "level", "behind")},
        rival=rival,
        times=times,
        ablations=_ablation_costs(runs),
        images=_image_standings(runs),
    )


def _image_standings(runs: Runs) -> str:
    """Lay out the accuracy of `xvfl+` and of its nearest rival on images."""
    rows = []
    for (figure, dataset), results in runs.items():
        if figure not in IMAGE_FIGURES:
            continue
        metric, rates = metric_of(dataset), judged(results)
        compared = standing(results, metric, rates)
        for mode in ("local", "collaborative"):
            nearest = min(
                (each for each in compared if each.mode == mode), key=lambda each: each.gap.mean
            )
            levels = [
                " / ".join(
                    f"{100 * mean(results, (name, mode), rate, metric).mean:.1f}" for rate in rates
                )
                for name in (OURS, nearest.rival)
            ]
            lead = f"{points(nearest.gap)}, {nearest.verdict}"
            parties = IMAGE_FIGURES[figure]
            rows.append([f"{dataset}, {parties} parties, {mode}", *levels, nearest.rival, lead])
    if not rows:
        return ""
    header = ["", OURS, "nearest rival", "which", "lead"]
    return _fill("images", standings=indent("\n".join(markdown_table(header, rows)), "    "))


def _ablation_costs(runs: Runs) -> str:
    """Lay out what each part of `xvfl+` contributes, in points, as an indented table."""
    parts = {
        "random masking": "without self completion",
        "XCom": "without cross completion",
        "DSAlign": "without DSAlign",
    }
    sets = {dataset: results for (name, dataset), results in runs.items() if name == "ablations"}
    if not sets:
        return ""
    columns = [(dataset, mode) for dataset in sets for mode in ("local", "collaborative")]

    def cost(without: str, dataset: str, mode: str) -> str:
        ways, metric = ((OURS, mode), (without, mode)), metric_of(dataset)
        lost = difference(sets[dataset], *ways, JUDGED, metric).mean
        return f"{100 * lost:.1f}".replace("-0.0", "0.0")

    lines = markdown_table(
        ["part", *map(", ".join, columns)],
        ([part, *(cost(without, *each) for each in columns)] for part, without in parts.items()),
    )
    return _fill("ablations", costs=indent("\n".join(lines), "    "))


def _standings(runs: Runs, compared: standings.Standings) -> str:
    positions = standings.behind(runs)
    return _fill(
        "standings",
        protocol=_fill("protocol"),
        verdicts="\n".join(standings.verdict_table(compared)),
        picture=PICTURE if compared else "",
        behind=_fill("behind", positions="\n".join(positions)) if positions else "",
    )


def _incomplete(stores: Stores, special: Collection[str]) -> str:
    """List the published figures that are incomplete."""
    names = []
    for figure, datasets in PUBLISHED.items():
        for dataset in datasets:
            jobs = FIGURES[figure](dataset, FULL[dataset])
            if missing := len(stores[dataset].missing(jobs)):
                names.append(f"{figure} on {dataset} ({len(jobs) - missing} of {len(jobs)} runs)")
    names += [name for name in SPECIAL if name not in special]
    return f"Not computed yet: {', '.join(names)}." if names else ""


def _tuning_text(evidence: Evidence) -> str:
    """Say how tuning changes the cases of P1; nothing without the runs."""
    tuned = tuning_tables.with_baselines(evidence.figures.get(tuning_tables.NAME, {}))
    before = {name: some for name in tuned if (some := evidence.of("missing-rates", name))}
    if not before or len(before) < len(tuned):
        return ""
    return _fill(
        "tuned",
        tables=WORDS[len(tuned)],
        before=tuning_tables.judged_cases(before, PAPER),
        baselines=tuning_tables.judged_cases(tuned, tuning_tables.UNTUNED),
        both=tuning_tables.judged_cases(tuned, PAPER),
        ours=tuning_tables.judged_cases(tuned, OURS),
    )


def _claims(answers: dict[str, Answer], evidence: Evidence) -> str:
    texts = (
        _fill("claim", name=name, claim=CLAIMS[name], answer=a, details="\n".join(a.details))
        for name, a in answers.items()
    )
    return _fill(
        "claims",
        protocol=_fill("protocol"),
        lambdas="\n".join(lambda_table()),
        tuned=_tuning_text(evidence),
        claims="\n".join(texts),
    )

"""The pages of results: a summary, the claims, the standings, and a page for each figure."""

import inspect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
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
    lambda_text,
)
from xvfl_lab.experiments.compare import difference, mean
from xvfl_lab.experiments.figure_cache import read, read_record
from xvfl_lab.experiments.figure_plot import draw_once, save_picture
from xvfl_lab.experiments.figure_tables import (
    JUDGED,
    axis_of,
    by_position,
    judged,
    markdown_row,
    metric_of,
    standing,
)
from xvfl_lab.experiments.figures import FIGURES, FULL, OURS, PUBLISHED
from xvfl_lab.experiments.grid_summaries import LEVELS, MODES, Summary, span, summarize
from xvfl_lab.experiments.reproduce import (
    SPECIAL,
    Request,
    full_tables,
    load,
    require_writable,
    write_numbers,
)
from xvfl_lab.experiments.run_store import RunStore
from xvfl_lab.experiments.runner import Result
from xvfl_lab.experiments.special_summaries import SUMMARIES as SPECIAL_SUMMARIES
from xvfl_lab.files import write_text

TITLES = {
    "mode-gap": "Gap between modes",
    "kinds": "Kinds of missing features",
    "images-four-parties": "Images with four parties",
    "boundary": "Decision boundary",
    "upload": "One upload",
    "unlabeled": "Unlabeled rows",
    "tuning": "Equal tuning",
    "dp": "Differential privacy",
}
"""Titles of pages that are not named as the figure."""
REPOSITORY = "https://github.com/xvfl/xvfl/blob/main/lab/results"
"""Where the complete tables are published."""
STANDINGS = "standings.png"
IMAGE_FIGURES = ("images", "images-four-parties")
"""The figures of images with all rows and today's losses and nets."""
NEAREST = "laser+mask"
"""The rival that is compared in all figures of images."""
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

    Numbers (`.json`) and complete tables (`.md`) go to the folder of the runs, pictures to the
    folder of the pages.
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
    described: dict[tuple[str, str], dict[str, Any]] = {}
    for request in requests:
        results, about = load(request, stores[request.dataset])
        write_numbers(request, results, about)
        runs[request.figure, request.dataset] = results
        described[request.figure, request.dataset] = about
    evidence = Evidence(runs, {name: record["figures"] for name, record in special.items()})
    answers = {name: claim.judge(evidence) for name, claim in CLAIMS.items()}
    figures = list(dict.fromkeys(request.figure for request in requests))
    for figure in figures:
        of_figure = [each for each in requests if each.figure == figure]
        _write_full_tables(of_figure, runs, described)
        body = _grid_page(of_figure, runs, described, answers, pages)
        _write_page(pages / f"{figure}.md", _title(figure), body)
    for name, record in special.items():
        _write_page(pages / f"{name}.md", _title(name), _special_page(name, record, out, pages))
    compared = standings.standings(runs)
    if compared:
        save_picture(plots.standings(compared), pages / STANDINGS)
    claims = "\n".join(_fill("claim", name=n, claim=CLAIMS[n], answer=answers[n]) for n in answers)
    _write_page(pages / "claims.md", "The paper's claims", _claims(claims, evidence))
    _write_claim_tables(out / "claims" / "claims.md", answers)
    _write_page(pages / "standings.md", "Where xvfl+ stands", _standings(runs, compared))
    names, incomplete = [*figures, *special], _incomplete(stores, special)
    summary = _summary(answers, _advice(runs, compared), names, incomplete)
    _write_page(pages / "index.md", "Results", summary)
    return pages / "index.md"


def _write_page(path: Path, title: str, body: str) -> None:
    text = _fill("page", version=VERSION, title=title, body=body)
    write_text(path, text.rstrip() + "\n")


def _title(figure: str) -> str:
    return TITLES.get(figure, figure.replace("-", " ").capitalize())


def _grid_page(
    requests: Sequence[Request],
    runs: Runs,
    described: Mapping[tuple[str, str], Mapping[str, Any]],
    answers: Mapping[str, Answer],
    pages: Path,
) -> str:
    """Lay out a grid figure: picture, table and finding of all its data sets, and the command."""
    figure = requests[0].figure
    by_dataset = {each.dataset: runs[figure, each.dataset] for each in requests}
    axis, metrics = axis_of(figure), {dataset: metric_of(dataset) for dataset in by_dataset}
    single = all(len(by_position(some, axis)) == 1 for some in by_dataset.values())
    dots = figure in ("ablations", "kinds") or single
    save_picture(plots.overview(by_dataset, axis, metrics, dots), pages / figure / f"{figure}.png")
    about = [described[figure, dataset] for dataset in by_dataset]
    spent: Counter[str] = Counter()
    for each in about:
        spent.update(each["hardware"])
    seeds = [each["seeds"] for each in about]
    command = (
        f"`xvfl-lab reproduce {figure} --dataset NAME`, with NAME one of {', '.join(by_dataset)}: "
        f"{sum(each['runs'] for each in about):,} runs, {span(seeds, 0)} seeds, "
        f"{_took(spent)}."
    )
    return _fill(
        "figure",
        caption=" ".join((inspect.getdoc(FIGURES[figure]) or "").split()),
        picture=f"![{_title(figure)}]({figure}/{figure}.png)",
        command=command,
        complete=_complete(f"{figure}/{figure}.md"),
        **_parts(summarize(figure, by_dataset, answers)),
    )


def _parts(summary: Summary) -> dict[str, object]:
    return {"summary": summary, "table": "\n".join(summary.table)}


def _took(spent: Mapping[str, float]) -> str:
    return ", ".join(f"{seconds:,.0f} s on {hardware}" for hardware, seconds in spent.items())


def _complete(path: str) -> str:
    name = "Complete tables" if path.endswith(".md") else "All numbers"
    return f"[{name}]({REPOSITORY}/{path})."


def _write_full_tables(
    requests: Sequence[Request],
    runs: Runs,
    described: Mapping[tuple[str, str], dict[str, Any]],
) -> None:
    """Write the tables of a grid figure on all its data sets."""
    figure, out = requests[0].figure, requests[0].out
    lines = [f"# {_title(figure)}", ""]
    for each in requests:
        key = (figure, each.dataset)
        lines += [f"## {each.dataset}", "", *full_tables(each, runs[key], described[key])]
    write_text(out / figure / f"{figure}.md", "\n".join(lines).rstrip() + "\n")


def _special_page(name: str, record: dict[str, Any], out: Path, pages: Path) -> str:
    """Lay out a figure that is not a grid of runs; draw it from its arrays."""
    picture = pages / name / f"{name}.png"
    if read(out / name, name) is not None:
        draw_once(out / name, name, SPECIAL[name].plot, picture)
    took = _took({record["hardware"]: record["seconds"]})
    complete = next((e for e in ("md", "json") if (out / name / f"{name}.{e}").exists()), "json")
    return _fill(
        "figure",
        caption=SPECIAL[name].caption,
        picture=f"![{_title(name)}]({name}/{name}.png)" if picture.exists() else "",
        command=f"`xvfl-lab reproduce {name}`: {took}.",
        complete=_complete(f"{name}/{name}.{complete}"),
        **_parts(SPECIAL_SUMMARIES[name](record["figures"])),
    )


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
        **{verdict: verdicts[verdict] for verdict in LEVELS},
        rival=rival,
        times=times,
        ablations=_ablations(runs),
        images=_images(runs),
    )


def _images(runs: Runs) -> str:
    """Say how `xvfl+` stands on images with all rows."""
    of = {key: some for key, some in runs.items() if key[0] in IMAGE_FIGURES}
    if not of:
        return ""
    verdicts: Counter[str] = Counter()
    slower = []
    for (_, dataset), results in of.items():
        compared = standing(results, metric_of(dataset), judged(results))
        rows = standings.against_rivals({dataset: compared})
        verdicts.update(verdict for _, _, verdict, _ in rows)
        seconds = (
            [each.seconds for each in results if each.config.name == name]
            for name in (OURS, NEAREST)
        )
        ours, theirs = (sum(each) / len(each) for each in seconds)
        slower.append(ours / theirs)
    return _fill(
        "images",
        **{verdict: verdicts[verdict] for verdict in LEVELS},
        comparisons=verdicts.total(),
        times=f"{min(slower):.0f} to {max(slower):.0f}",
        shifts=_shifts(runs),
    )


def _shifts(runs: Runs) -> str:
    """Say what random shifts cost on images of aligned faces."""
    before, after = (runs.get((figure, "utkface")) for figure in ("missing-rates", "images"))
    if not before or not after:
        return ""
    costs = [
        100 * (mean(before, (NEAREST, mode), rate).mean - mean(after, (NEAREST, mode), rate).mean)
        for mode in MODES
        for rate in judged(after)
    ]
    return _fill("shifts", cost=span(costs, 1))


def _ablations(runs: Runs) -> str:
    """Say what each part of `xvfl+` contributes."""
    parts = {
        "masking": "without self completion",
        "xcom": "without cross completion",
        "dsalign": "without DSAlign",
    }
    sets = {dataset: results for (name, dataset), results in runs.items() if name == "ablations"}
    if not sets:
        return ""

    def costs(without: str) -> str:
        by_mode = {
            mode: [
                100 * difference(some, (OURS, mode), (without, mode), JUDGED, metric_of(d)).mean
                for d, some in sets.items()
            ]
            for mode in MODES
        }
        return ", ".join(f"{span(of, 1)} in `{mode}`" for mode, of in by_mode.items())

    texts = {part: costs(without) for part, without in parts.items()}
    return _fill("ablations", datasets=", ".join(sets), **texts)


def _standings(runs: Runs, compared: standings.Standings) -> str:
    positions = standings.behind(runs)
    behind = f"`{OURS}` is behind a rival, in points, at single settings: {'; '.join(positions)}."
    return _fill(
        "standings",
        protocol=_fill("protocol").rstrip(),
        verdicts="\n".join(standings.verdict_table(compared)),
        picture=PICTURE if compared else "",
        behind=behind if positions else "",
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


def _claims(claims: str, evidence: Evidence) -> str:
    return _fill(
        "claims",
        lambdas=lambda_text(),
        tuned=_tuning_text(evidence),
        claims=claims,
        complete=_complete("claims/claims.md"),
    )


def _write_claim_tables(path: Path, answers: Mapping[str, Answer]) -> None:
    """Write the tables behind the verdicts."""
    lines = []
    for name, answer in answers.items():
        lines += [f"## {name}", "", f"{CLAIMS[name].text}: **{answer.verdict}**", ""]
        lines += answer.details
    text = _fill("all_claims", lambdas="\n".join(lambda_table()), claims="\n".join(lines))
    write_text(path, text.rstrip() + "\n")

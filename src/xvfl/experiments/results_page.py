"""RESULTS.md: one page of all figures that are there, made by command alone."""

from pathlib import Path

from matplotlib import pyplot as plt

from xvfl.experiments import claims, plots
from xvfl.experiments.jobs import FIGURES, FULL
from xvfl.experiments.kept import read
from xvfl.experiments.reproduce import SPECIAL, Request, about, page, write
from xvfl.experiments.runner import Result
from xvfl.runs import Folder
from xvfl.version import VERSION

STANDINGS = "standings.png"
HEAD = """# Results

Made by `xvfl reproduce report --out results` (xvfl {version}) from the runs in `runs/`; each
section names the command that made its runs. Figures are means ± standard deviations over seeds,
in percent; test rows are all non-aligned unless a table says otherwise, and every method has the
same nets, optimiser, epochs and rows, without tuning of its own. Where one class is rare (Bank,
Avazu, PhysioNet) AUROC decides and accuracy stands beside it with the majority rate; elsewhere
accuracy does. *Ahead* and *behind* mean a paired mean difference over seeds beyond two standard
errors, Holm-corrected over the rivals. How the recipe of `xvfl+` was chosen, on validation rows, is
in [docs/methods](../docs/methods/xvfl-plus.md); rows, epochs and seeds, with their reasons, in
[docs/reproduce](../docs/reproduce.md#the-budgets).
"""


def requests(out: Path) -> list[Request]:
    """List the figures of which all runs are there."""
    found = []
    for figure in FIGURES:
        for dataset in FULL:
            request = Request(figure, dataset, False, out)
            store = request.store()
            if store.results and not store.missing(request.jobs()):
                found.append(request)
    return found


def write_page(out: Path) -> Path:
    """Write the page and every figure on it."""
    there = requests(out)
    runs: dict[tuple[str, str], list[Result]] = {}
    sections: list[str] = []
    for request in there:
        write(request)
        jobs, store = request.jobs(), request.store()
        results = store.get(jobs)
        runs[request.figure, request.dataset] = results
        lines = page(request, results, about(request, results, jobs, store))
        beside = f"]({request.figure}/"
        body = [line.replace("](", beside) if line.startswith("![") else line for line in lines]
        sections += [f"## {request.figure}: {request.dataset}", "", *body]
    for name in SPECIAL:
        if (out / name / f"{name}.png").exists():
            sections += [f"## {name}", "", SPECIAL[name][2], "", f"`xvfl reproduce {name}`", ""]
            sections += [f"![{name}]({name}/{name}.png)", ""]
    text = [HEAD.format(version=VERSION), *_demand(runs, out), *_claims(runs, out), *sections]
    Folder(out).write_text("RESULTS.md", "\n".join(text) + "\n")
    return out / "RESULTS.md"


def _demand(runs: claims.Runs, out: Path) -> list[str]:
    stands = claims.standings(runs)
    if stands:
        picture = plots.standings(stands)
        picture.savefig(out / STANDINGS, dpi=130)
        plt.close(picture)
    lines = [
        "## Where `xvfl+` stands",
        "",
        "On the average of R_miss 0.5 and 0.9, overlap 0.4: the verdict over all rivals, the",
        "nearest rival, and the paired difference from it in points.",
        "",
        "| data set | mode | xvfl+ is | nearest rival | difference |",
        "|---|---|---|---|--:|",
        *claims.verdict_of_demand(stands),
        "",
        *([f"![xvfl+ against every rival]({STANDINGS})", ""] if stands else []),
    ]
    if missing := claims.images_open(runs):
        there = ", ".join(f"{name} ({_progress(name, out)})" for name in missing)
        lines += [f"Not all runs are made yet: {there}.", ""]
    return lines


def _progress(dataset: str, out: Path) -> str:
    request = Request("missing-rates", dataset, False, out)
    jobs = request.jobs()
    return f"{len(jobs) - len(request.store().missing(jobs))} of {len(jobs)}"


def _claims(runs: claims.Runs, out: Path) -> list[str]:
    lines = ["## The paper's claims", "", "| claim | answer | figures |", "|---|---|---|"]
    answers = [(answer.__doc__, answer(runs)) for answer in claims.CLAIMS.values()]
    for name, answer in claims.OF_THEIR_OWN.items():
        found = read(out / name, name)
        record = found[0]["figures"] if found else None
        answers.append((answer.__doc__, answer(record) if record else claims.OPEN))
    for claim, found_ in answers:
        lines.append(f"| {(claim or '').strip()} | {found_.verdict} | {found_.figures} |")
    return [*lines, ""]

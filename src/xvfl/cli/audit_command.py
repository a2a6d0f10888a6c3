"""`xvfl audit`: attack a simulated federation with the operator's own tables."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xvfl.cli.output import new_table, print_error, print_table
from xvfl.errors import InputError

if TYPE_CHECKING:
    from xvfl.audit.run_audit import AuditResult

QUICK_ROWS, QUICK_EPOCHS = 1000, 5


def audit(
    path: Annotated[
        Path, typer.Argument(help="A training configuration, or a finished run folder.")
    ],
    out: Annotated[
        Path, typer.Option(help="Output folder for audit.html, audit.json and audit.png.")
    ] = Path("audit"),
    rows: Annotated[
        int, typer.Option(help="Largest number of labeled rows; more are sampled.", min=100)
    ] = 6000,
    known_labels: Annotated[int, typer.Option(help="Labels that a party knows.", min=4)] = 40,
    known_rows: Annotated[
        int, typer.Option(help="Rows whose features an attacker knows.", min=10)
    ] = 200,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"At most {QUICK_ROWS} rows and {QUICK_EPOCHS} epochs, and weaker attacks.",
        ),
    ] = False,
) -> None:
    """Measure what the participants of a federation can learn.

    Simulates the coordinator and all parties in this process, with the messages, limits and label
    protection of a federation, and once more without protection. Then it attacks the recorded
    traffic: labels from gradients and cues, features from embeddings, and requests of a dishonest
    coordinator. Each figure is shown beside what the attacker would know without the federation.

    Writes audit.html, a page for a data-protection officer, and audit.json with all figures. The
    tables stay on this machine.

    xvfl audit run.toml --out audit
    """
    from dataclasses import replace

    from xvfl.audit.audit_page import page, shows
    from xvfl.audit.findings import worst_by_attack
    from xvfl.audit.load_scenario import load_scenario
    from xvfl.audit.run_audit import QUICK, AuditOptions
    from xvfl.audit.run_audit import audit as run_audit
    from xvfl.model.plots import NO_MATPLOTLIB, has_matplotlib
    from xvfl.model.progress import work_bar

    scenario = load_scenario(
        path, min(rows, QUICK_ROWS) if quick else rows, QUICK_EPOCHS if quick else None
    )
    options = QUICK if quick else AuditOptions()
    options = replace(options, n_labels=known_labels, n_rows=known_rows)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be created ({error.strerror})") from error
    with work_bar("audit") as report:
        result = run_audit(scenario, options, report)
    plot = None
    if has_matplotlib():
        from xvfl.audit.audit_plot import audit_plot

        plot = audit_plot([each for each in worst_by_attack(result.findings) if shows(each)])
    else:
        print_error(NO_MATPLOTLIB)
    _print_findings(str(path), result)
    command = f"xvfl audit {path}" + (" --quick" if quick else "")
    figures = {**result.about, "findings": [each.to_dict() for each in result.findings]}
    _write(out / "audit.json", json.dumps(figures, indent=1, ensure_ascii=False).encode())
    _write(out / "audit.html", page(result, command, plot).encode())
    if plot is not None:
        _write(out / "audit.png", plot)
    print(f"wrote {out / 'audit.html'} and {out / 'audit.json'}")


def _print_findings(name: str, result: "AuditResult") -> None:
    """Print one line for each attack and metric: the party with the largest gain."""
    from xvfl.audit.audit_page import shows
    from xvfl.audit.findings import worst_by_attack

    title = f"{name}: what attackers reach, {result.about['training_rows']} training rows"
    columns = ["own data", "no protection", "protected", "result"]
    table = new_table(title, ["mode", "party", "metric", *columns])
    table.columns[0].header, table.columns[1].header = "attack", "attacker → target"
    for each in worst_by_attack(result.findings):
        if shows(each):
            values = (each.without_federation, each.unprotected, each.protected)
            who = f"{each.key.attacker} → {each.key.target}"
            figures = [f"{value:.3f}" for value in values]
            table.add_row(each.key.attack, who, each.key.metric, *figures, each.verdict)
    print_table(table)


def _write(path: Path, content: bytes) -> None:
    from xvfl.system.files import atomic_write

    try:
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error

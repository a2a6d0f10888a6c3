"""`xvfl audit`: attack an upload, or interactive training, with the operator's own tables."""

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xvfl.cli.output import new_table, print_error, print_table
from xvfl.errors import InputError

if TYPE_CHECKING:
    from xvfl.audit.interactive_audit import AuditResult
    from xvfl.audit.simulation import Scenario
    from xvfl.audit.sweep import UploadScenario
    from xvfl.audit.upload_audit import UploadResult

QUICK_ROWS, QUICK_EPOCHS = 1000, 5


def audit(
    path: Annotated[
        Path,
        typer.Argument(
            help="A party's configuration, a training configuration, or a finished run folder."
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Output folder for audit.html, audit.json and audit.png.")
    ] = Path("audit"),
    rows: Annotated[
        int, typer.Option(help="Largest number of rows; more are sampled.", min=100)
    ] = 5000,
    label: Annotated[
        str | None,
        typer.Option(
            help="With a party's configuration: a column that stands in for the coordinator's "
            "label, to measure accuracy. The simulated upload does not contain it."
        ),
    ] = None,
    known_labels: Annotated[
        int, typer.Option(help="Interactive training: labels that a party knows.", min=4)
    ] = 40,
    known_rows: Annotated[
        int, typer.Option(help="Largest number of rows that an attacker knows.", min=10)
    ] = 200,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"At most {QUICK_ROWS} rows, short training, fewer settings, weaker attacks.",
        ),
    ] = False,
) -> None:
    """Measure what a coordinator can read from an upload, before it is sent.

    Trains the encoder, computes the upload and attacks it: columns without and with known rows,
    with a colluding party, a stolen encoder and two versions; membership; labels. Each figure is
    shown beside chance and beside version 0.3.0. Repeats this with other settings of the upload,
    and plots the accuracy of heads against what the upload reveals.

    With the label protection `off` or `noise`, it simulates interactive training instead, and
    attacks the gradients, cues and embeddings that are sent.

    Writes audit.html, a page for a data-protection officer, and audit.json with all figures. The
    tables stay on this machine.

    xvfl audit party.toml --out audit
    """
    from xvfl.audit.sweep import UploadScenario
    from xvfl.model.report.charts import NO_MATPLOTLIB, has_matplotlib

    scenario = _load(path, min(rows, QUICK_ROWS) if quick else rows, label, quick)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be created ({error.strerror})") from error
    command = f"xvfl audit {path}" + (" --quick" if quick else "")
    draw = has_matplotlib()
    if not draw:
        print_error(NO_MATPLOTLIB)
    if isinstance(scenario, UploadScenario):
        files = _audit_upload(scenario, str(path), command, known_rows, quick, draw)
    else:
        files = _audit_interactive(
            scenario, str(path), command, known_labels, known_rows, quick, draw
        )
    for name, content in files.items():
        _write(out / name, content)
    print(f"wrote {out / 'audit.html'} and {out / 'audit.json'}")


def _load(path: Path, rows: int, label: str | None, quick: bool) -> "Scenario | UploadScenario":
    from xvfl.audit.load_scenario import load_party_scenario, load_scenario

    if not _is_party(path):
        if label is not None:
            raise InputError("--label: needs a party's configuration; others name their labels")
        return load_scenario(path, rows, QUICK_EPOCHS if quick else None)
    from xvfl.model.workflow import read_source
    from xvfl.service.config import load_party_config

    config = load_party_config(path)
    name = Path(config.table).stem
    source = read_source(config.table, config.id_column, name)
    return load_party_scenario(name, source, config.options, config.encoder, label, rows)


def _is_party(path: Path) -> bool:
    """Return whether a file is the configuration of a party in a federation."""
    from xvfl.config import read_config

    if path.is_dir():
        return False
    try:
        return "coordinator" in tomllib.loads(read_config(path))
    except tomllib.TOMLDecodeError:
        return False


def _audit_upload(
    scenario: "UploadScenario", name: str, command: str, known_rows: int, quick: bool, draw: bool
) -> dict[str, bytes]:
    from dataclasses import replace

    from xvfl.audit.upload_audit import QUICK_UPLOAD, UploadAuditOptions, audit_upload
    from xvfl.audit.upload_page import upload_page
    from xvfl.model.progress import work_bar

    options = QUICK_UPLOAD if quick else UploadAuditOptions()
    attacks = options.attacks
    counts = sorted({min(count, known_rows) for count in (*attacks.known_rows, known_rows)})
    options = replace(options, attacks=replace(attacks, known_rows=tuple(counts)))
    with work_bar("audit") as report:
        result = audit_upload(scenario, options, report)
    _print_upload(name, result)
    plot = None
    if draw:
        from xvfl.audit.upload_plot import upload_plot

        plot = upload_plot(result)
    return _files(result.to_dict(), upload_page(result, command, plot), plot)


def _print_upload(name: str, result: "UploadResult") -> None:
    """Print what each attack reaches, then accuracy and recovery by setting."""
    from xvfl.audit.upload_page import REFERENCE_DIAL, configured_lines, dial_table

    reference = {
        (each.attack, each.metric): each.value
        for _, each in configured_lines(result.of(REFERENCE_DIAL))
    }
    table = new_table(f"{name}: what attacks on the upload reach", ["mode", "party", "metric"])
    table.columns[0].header = "attack"
    for column in ("0.3.0", "chance", "this upload"):
        table.add_column(column, justify="right")
    for party, each in configured_lines(result.configured):
        old = reference.get((each.attack, each.metric))
        figures = ["–" if old is None else f"{old:.3f}", f"{each.control:.3f}", f"{each.value:.3f}"]
        table.add_row(each.attack, party, each.metric, *figures)
    print_table(table)
    header, lines = dial_table(result)
    dials = new_table("accuracy, and recovery of columns by known rows", ["mode", *header[1:]])
    dials.columns[0].header = header[0]
    for line in lines:
        dials.add_row(*line)
    print_table(dials)


def _audit_interactive(
    scenario: "Scenario",
    name: str,
    command: str,
    known_labels: int,
    known_rows: int,
    quick: bool,
    draw: bool,
) -> dict[str, bytes]:
    from dataclasses import replace

    from xvfl.audit.findings import worst_by_attack
    from xvfl.audit.interactive_audit import QUICK, AuditOptions
    from xvfl.audit.interactive_audit import audit as run_audit
    from xvfl.audit.interactive_page import page, shows
    from xvfl.model.progress import work_bar

    options = QUICK if quick else AuditOptions()
    options = replace(options, n_labels=known_labels, n_rows=known_rows)
    with work_bar("audit") as report:
        result = run_audit(scenario, options, report)
    plot = None
    if draw:
        from xvfl.audit.interactive_plot import audit_plot

        plot = audit_plot([each for each in worst_by_attack(result.findings) if shows(each)])
    _print_findings(name, result)
    figures = {**result.about, "findings": [each.to_dict() for each in result.findings]}
    return _files(figures, page(result, command, plot), plot)


def _files(figures: dict[str, object], page: str, plot: bytes | None) -> dict[str, bytes]:
    content = json.dumps(figures, indent=1, ensure_ascii=False).encode()
    files = {"audit.json": content, "audit.html": page.encode()}
    return files if plot is None else {**files, "audit.png": plot}


def _print_findings(name: str, result: "AuditResult") -> None:
    """Print one line for each attack and metric: the party with the largest gain."""
    from xvfl.audit.findings import worst_by_attack
    from xvfl.audit.interactive_page import shows

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

"""Progress: one line of 80 columns in a terminal, plain lines elsewhere, and how training ended."""

import importlib
import io
import re
from collections.abc import Iterator
from types import SimpleNamespace

import IPython
import pytest
from rich.console import Console

from tests.command_line import run_xvfl
from tests.options import resolved
from tests.problems import NUMBERS, make_problem
from tests.small_tables import make_tables, write_run_inputs
from xvfl import XVFLClassifier
from xvfl.config import TrainConfig
from xvfl.methods.xvfl import XVFL, XVFLWeights
from xvfl.model.fitting import ProgressUpdate
from xvfl.model.progress import LINE_SECONDS, is_interactive, progress_bar, times_text, work_bar
from xvfl.model.run_recorder import epoch_line
from xvfl.training.loop import Progress, Record, Trainer

SEARCH = "λ1=0.1 λ2=0.01 (3/9)"


def update(epoch: int, best: int, label: str = "", kind: str = "epoch") -> ProgressUpdate:
    """Make the update at the end of an epoch of 160 epochs."""
    progress = Progress(epoch=epoch, step=epoch, best_epoch=best - 1, best_score=-0.3051)
    values = {"decision": 0.4, "score": -0.3124} if kind == "epoch" else {}
    return ProgressUpdate(Record(kind, progress, values), 160, 1, label)  # type: ignore[arg-type]


def clock(step: float) -> Iterator[float]:
    """Count seconds."""
    now = 0.0
    while True:
        yield now
        now += step


@pytest.mark.parametrize("label", ["", SEARCH])
def test_the_bar_of_a_training_fits_80_columns(label: str) -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    with progress_bar(True, console) as show:
        for epoch in (1, 2, 138, 139):
            show(update(epoch, 24, label))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", file.getvalue()).replace("\r", "\n")
    lines = text.split("\n")
    assert max(map(len, lines)) <= 80
    shown = [line for line in lines if "epoch 140/160" in line]
    assert shown and all(line.rstrip().endswith(" left") for line in shown)
    if label:
        assert f"training: {label}, epoch 140/160" in shown[-1]
    else:
        assert "log-loss 0.312, best 0.305 at 24" in shown[-1]
        assert "training: stopped early at 139, best 24 (validation log-loss 0.3051)" in text


def test_plain_lines_where_nobody_looks_at_a_bar() -> None:
    file, seconds = io.StringIO(), clock(4.0)
    console = Console(file=file, width=80)
    with progress_bar(True, console, clock=lambda: next(seconds)) as show:
        for epoch in range(1, 81):
            show(update(epoch, 24))
    *lines, end = file.getvalue().splitlines()
    assert "\x1b" not in file.getvalue() and all(len(line) <= 100 for line in lines)
    assert len(lines) == 80 * 4 // 12, "a line after 12 s, the first reading after LINE_SECONDS"
    assert lines[-1] == (
        "training: epoch 79/160, log-loss 0.312, best 0.305 at 24, 49%, 5:12, 5:28 left"
    )
    assert end.startswith("training: stopped early at 80, best 24")


def test_a_training_of_all_epochs_does_not_stop_early() -> None:
    file = io.StringIO()
    with progress_bar(True, Console(file=file, width=80)) as show:
        show(update(160, 157))
    assert (
        file.getvalue() == "training: trained 160 epochs, best 157 (validation log-loss 0.3051)\n"
    )


@pytest.mark.parametrize("score_name", ["log-loss", "squared error"])
def test_the_best_value_never_gets_worse(score_name: str) -> None:
    """The first tenth of the epochs does not count, so it shows no best value."""
    problem = make_problem([NUMBERS] * 2, ["FF", "FP", "PF", "FF"] * 2, seed=0)
    config = resolved(train=TrainConfig(epochs=20, batch_size=8, patience=0, device="cpu")).train
    method = XVFL(problem.head, XVFLWeights(0.1, 0.1))
    trainer = Trainer(problem.federation(), method, problem.rows, config)
    losses = iter([0.3, 0.5, 0.9, 0.8, 0.6, 0.7, 0.4, *[0.5] * 20])
    file, seconds = io.StringIO(), clock(LINE_SECONDS)
    records = []
    with progress_bar(True, Console(file=file), clock=lambda: next(seconds)) as show:
        for record in trainer.run(lambda: -next(losses)):
            if record.kind == "epoch":
                show(ProgressUpdate(record, 20, trainer.batches_per_epoch, "", score_name))
                records.append(epoch_line(record, {}, 0.0))
    lines = [line for line in file.getvalue().splitlines() if score_name in line]
    best = [float(found[1]) for line in lines if (found := re.search(r"best (\S+) at", line))]
    assert best == sorted(best, reverse=True) and best[:3] == [0.9, 0.8, 0.6] and best[-1] == 0.4
    assert "best" not in lines[0] and "best" not in lines[1]
    assert [each["best_epoch"] for each in records[:5]] == [0, 0, 3, 4, 5]


def test_short_work_prints_no_lines() -> None:
    file, seconds = io.StringIO(), clock(LINE_SECONDS / 4)
    with work_bar("explaining", True, Console(file=file), lambda: next(seconds)) as report:
        for at in range(3):
            report("features", at / 3)
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("elapsed", "share", "text"),
    [
        (12.0, 0.2, "0:12, 0:48 left"),
        (3700, 0.5, "1:01:40, 1:01:40 left"),
        (5, 0.0, "0:05"),
        (5, 1.0, "0:05"),
    ],
)
def test_remaining_time_is_proportional(elapsed: float, share: float, text: str) -> None:
    assert times_text(elapsed, share) == text


@pytest.mark.slow
def test_early_stopping_is_reported_by_classifier_and_command(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    bank, shop, y = make_tables()
    noise = y.sample(frac=1, random_state=0).set_axis(y.index)
    fresh = XVFLClassifier(epochs=50, patience=2, device="cpu", verbose=True, hidden_dim=16)
    fitted = fresh.fit({"bank": bank, "shop": shop}, noise)
    trained, best = len(fitted.history_), fitted.history_[-1]["best_epoch"]
    assert trained < 50
    assert f"training: stopped early at {trained}, best {best} (" in capsys.readouterr().err
    folder = tmp_path_factory.mktemp("run")
    config = write_run_inputs(folder)
    config.write_text(config.read_text().replace("epochs = 3", "epochs = 50\npatience = 1"))
    done = run_xvfl("train", config, "--out", folder / "run")
    assert done.code == 0 and re.search(r"stopped early at \d+, best \d+ \(validation", done.out)


def test_a_notebook_is_recognized_by_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("ipykernel.kernelbase")
    assert not is_interactive()
    for shell, notebook in ((SimpleNamespace(), False), (SimpleNamespace(kernel=object()), True)):
        monkeypatch.setattr(IPython, "get_ipython", lambda shell=shell: shell)
        assert is_interactive() == notebook

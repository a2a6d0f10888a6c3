"""The dashboard and the coordinator's page in a real browser."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import ENVIRONMENT
from tests.security.route_walk import TOKENS, write_tokens
from tests.service.predicting_federation import Predicting, copy_trained
from tests.service.test_service import COORDINATOR, SHOP, start, wait_for, write
from tests.small_tables import CONFIG, write_run_inputs
from xvfl.model.dashboard.dashboard_server import DashboardServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WAIT_MS = 300_000
"""Patience of the tests on a busy machine."""
PANELS = (
    "Training loss by term",
    "Validation by mode",
    "Parties",
    "What is missing where",
    "Warnings",
    "Evaluation of the modes",
    "Confusion matrix",
    "Calibration",
    "Modes over missing rates",
    "Observed against completed",
)
POINTS = """() => Math.min(...['Training loss by term', 'Validation by mode'].flatMap((name) =>
  [...document.querySelectorAll(`section[aria-label="${name}"] path.line`)]
    .map((line) => Number(line.dataset.points))).concat(
  document.querySelector('section[aria-label="Validation by mode"] path.line') ? [] : [0]))"""
"""The number of points of the shortest curve on the page; 0 without a curve."""


@contextmanager
def open_page(
    browser: "Browser", url: str, width: int = 1280, scheme: str = "light"
) -> "Iterator[Page]":
    """Open a page; fail if it logs an error, or scrolls to the side."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    problems: list[str] = []
    page.on(
        "console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda r: (
            problems.append(r.url) if not r.url.startswith(("http://127.", "data:")) else None
        ),
    )
    with closing(context):
        page.goto(url)
        yield page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert problems == []


def wait_for_points(page: "Page", more_than: int, process: "subprocess.Popen[str]") -> int:
    """Wait until every curve has more points; return their number. The process must be running."""
    while (points := int(page.evaluate(POINTS))) <= more_than:
        assert process.poll() is None
        page.wait_for_timeout(100)
    return points


@pytest.fixture
def dashboard(finished_runs: Path) -> Iterator[str]:
    with closing(DashboardServer(finished_runs)) as server:
        yield server.url


@pytest.fixture(scope="module")
def predicting_federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Predicting]:
    """A coordinator that predicts with one of its three parties."""
    with Predicting(copy_trained(tmp_path_factory)).start("bank") as federation:
        yield federation


@pytest.mark.slow
def test_a_browser_logs_in_with_the_token_as_the_password(
    browser: "Browser", finished_runs: Path, tmp_path: Path
) -> None:
    with closing(DashboardServer(finished_runs, tokens=write_tokens(tmp_path))) as server:
        for token, status in ((None, 401), (TOKENS["predict"], 403), (TOKENS["look"], 200)):
            login = token and {"username": "ann", "password": token}
            with closing(browser.new_context(http_credentials=login or None)) as context:
                page = context.new_page()
                if token is None:
                    # Without a user at the prompt, the browser gives up.
                    with pytest.raises(Exception, match="ERR_INVALID_AUTH_CREDENTIALS"):
                        page.goto(server.url)
                    continue
                reply = page.goto(server.url)
                assert reply is not None and reply.status == status
                if status == 200:
                    # The page's script sends the password, too.
                    page.get_by_text("tables").first.wait_for(timeout=WAIT_MS)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("run", ["tables", "images"])
def test_every_panel_of_a_finished_run(
    browser: "Browser", dashboard: str, run: str, width: int, scheme: str
) -> None:
    with open_page(browser, f"{dashboard}#/run/{run}", width, scheme) as page:
        page.wait_for_selector("section[aria-label='Observed against completed'] h3")
        for name in PANELS:
            panel = page.locator(f"section[aria-label='{name}']")
            assert panel.is_visible(), name
            assert (
                "Not computed" not in panel.inner_text()
                and "No evaluation" not in panel.inner_text()
            )
        assert page.evaluate(POINTS) >= 2
        assert page.locator(".heatmap td.heat").count() >= 4
        assert page.locator(".confusion td.heat").count() in (4, 100)
        assert page.locator("section[aria-label=Calibration] circle").count() >= 1
        rates = page.locator("section[aria-label='Modes over missing rates']")
        assert rates.locator("path.line").count() == 5
        metric = "accuracy" if run == "images" else "AUROC"
        assert f"{metric} on" in rates.inner_text()
        images = page.locator("section[aria-label='Observed against completed'] canvas")
        assert images.count() == (36 if run == "images" else 0)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(17, 22, 27)") == (scheme == "dark")


@pytest.mark.slow
def test_every_panel_of_a_run_of_regression(browser: "Browser", regression_runs: Path) -> None:
    with (
        closing(DashboardServer(regression_runs)) as server,
        open_page(browser, f"{server.url}#/run/numbers") as page,
    ):
        page.wait_for_selector("section[aria-label='Observed against completed'] h3")
        for name in (*PANELS[:6], "Predictions and labels", *PANELS[8:]):
            panel = page.locator(f"section[aria-label='{name}']")
            assert panel.is_visible(), name
            assert "NaN" not in panel.inner_text() and "undefined" not in panel.inner_text(), name
            assert "Not computed" not in panel.inner_text()
        assert page.evaluate(POINTS) >= 2
        pairs = page.locator("section[aria-label='Predictions and labels'] circle")
        assert pairs.count() > 10 and page.locator(".confusion").count() == 0
        assert not page.locator("section[aria-label='Calibration']").is_visible()
        evaluation = page.locator("section[aria-label='Evaluation of the modes']").inner_text()
        assert "RMSE" in evaluation and "AUROC" not in evaluation
        rates = page.locator("section[aria-label='Modes over missing rates']")
        assert rates.locator("path.line").count() == 5 and "R²" in rates.inner_text()


def test_theme_switch_and_keyboard(browser: "Browser", dashboard: str) -> None:
    with open_page(browser, dashboard) as page:
        page.wait_for_selector("a[data-run]")
        for theme in ("light", "dark"):
            page.click("#theme")
            assert page.evaluate("document.documentElement.dataset.theme") == theme
        page.reload()
        page.wait_for_selector("a[data-run]")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        # Tab order: skip link, brand, theme, first run; arrow keys move among the runs.
        for _ in range(4):
            page.keyboard.press("Tab")
        first = page.evaluate("document.activeElement.dataset.run")
        page.keyboard.press("ArrowDown")
        second = page.evaluate("document.activeElement.dataset.run")
        assert {first, second} == {"tables", "images"}
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        page.wait_for_selector("path.line")
        assert page.inner_text("h1") == second
        page.locator("section[aria-label='Validation by mode'] .plot").focus()
        page.keyboard.press("ArrowLeft")
        readout = page.locator("section[aria-label='Validation by mode'] .readout")
        assert readout.inner_text().startswith("epoch ")


def test_choice_of_the_line_changes_the_confusion_matrix(
    browser: "Browser", dashboard: str
) -> None:
    with open_page(browser, f"{dashboard}#/run/tables") as page:
        select = page.get_by_label("mode and party")
        select.wait_for()
        select.select_option("local bank")
        assert "local bank" in page.inner_text("section[aria-label='Confusion matrix']")
        assert "local bank" in page.inner_text("section[aria-label=Calibration]")


def test_a_run_without_evaluation_says_what_to_run(browser: "Browser", tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "<b>new</b> & odd"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"method": "xvfl+", "state": "stopped"}))
    server = DashboardServer(tmp_path / "runs")
    try:
        with open_page(browser, server.url) as page:
            page.click("a[data-run]")
            page.wait_for_selector("section[aria-label='Confusion matrix'] code")
            assert page.inner_text("h1") == "<b>new</b> & odd"
            panel = page.locator("section[aria-label='Modes over missing rates']")
            assert "xvfl evaluate <b>new</b> & odd" in panel.inner_text()
    finally:
        server.close()


@pytest.mark.slow
def test_folders_of_a_federation_show_what_they_have(browser: "Browser", tmp_path: Path) -> None:
    for name, side in (("main", "coordinator"), ("bank", "party")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"side": side, "state": "stopped"}))
    (tmp_path / "bank" / "encoder.json").write_text("{}")
    server = DashboardServer(tmp_path)
    try:
        with open_page(browser, f"{server.url}#/run/main") as page:
            page.wait_for_selector("text=The coordinator evaluates when the training has ended.")
            # These need the tables of all parties, which no process of a federation has.
            for name in ("Modes over missing rates", "Observed against completed"):
                assert not page.locator(f"section[aria-label='{name}']").is_visible()
            assert not page.get_by_label("mode and party").is_visible()
            assert "xvfl evaluate" not in page.inner_text("main")
        with open_page(browser, f"{server.url}#/run/bank") as page:
            page.wait_for_selector("text=No warnings.")
            visible = page.locator("section:visible")
            assert visible.count() == 1 and visible.get_attribute("aria-label") == "Warnings"
    finally:
        server.close()


@pytest.mark.slow
def test_a_finished_training_shows_nobody_online(
    browser: "Browser", tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nobody knows from a folder who is connected now."""
    server = DashboardServer(copy_trained(tmp_path_factory, tmp_path / "federation"))
    try:
        for name in ("main", "main/heads/1"):
            with open_page(browser, f"{server.url}#/run/{name.replace('/', '%2F')}") as page:
                panel = page.locator("section[aria-label=Parties]")
                panel.locator("table").wait_for()
                assert "shop" in panel.inner_text() and "online" not in panel.inner_text()
                assert page.locator(".tag.online").count() == 0
    finally:
        server.close()


def test_a_phone_shows_all_lines_of_a_table(browser: "Browser", dashboard: str) -> None:
    with open_page(browser, f"{dashboard}#/run/tables", 390) as page:
        page.wait_for_selector("section[aria-label='Evaluation of the modes'] .cards")
        hidden = "(each) => each.scrollHeight - each.clientHeight"
        for name in ("Evaluation of the modes", "Parties"):
            assert page.locator(f"section[aria-label='{name}'] .scroll").evaluate(hidden) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_page_of_a_coordinator_that_predicts(
    browser: "Browser", predicting_federation: Predicting, width: int
) -> None:
    port = predicting_federation.event("main", "status_server")["port"]
    with open_page(browser, f"http://127.0.0.1:{port}/", width) as page:
        page.wait_for_selector("dd .tag.predicting")
        parties = page.inner_text("section[aria-label=Parties]")
        assert "online" in parties and "absent" in parties and "not connected" in parties
        assert "stored" in parties and "usable until" in parties
        heads = page.inner_text("section[aria-label=Heads]")
        assert "head 1" in heads and "current" in heads and "bank 1, shop 1, clinic 1" in heads
        assert page.locator("section:visible").count() == 2


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_page_of_a_party_that_predicts(
    browser: "Browser", predicting_federation: Predicting, width: int
) -> None:
    port = predicting_federation.event("bank", "status_server")["port"]
    with open_page(browser, f"http://127.0.0.1:{port}/", width) as page:
        page.wait_for_selector("dd .tag.predicting")
        left = page.inner_text("section[aria-label='What left this party']")
        assert "version 1" in left and "380" in left
        assert "0 rows are withdrawn" in page.inner_text("section[aria-label=Withdrawals]")
        budget = page.locator("section[aria-label='Predictions today']")
        budget.wait_for()
        assert "rows answered" in budget.inner_text()


@pytest.mark.slow
def test_curves_grow_during_a_training_without_reload(browser: "Browser", tmp_path: Path) -> None:
    config = CONFIG.replace("epochs = 3", "epochs = 5000\npatience = 0")
    write_run_inputs(tmp_path, config)
    (tmp_path / "runs").mkdir()
    server = DashboardServer(tmp_path / "runs")
    command = [sys.executable, "-m", "xvfl", "train", "run.toml", "--out", "runs/live"]
    training = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        with open_page(browser, server.url) as page:
            page.evaluate("window.opened = true")
            page.wait_for_selector("a[data-run=live]").click()
            points = wait_for_points(page, 1, training)
            for _ in range(2):
                points = wait_for_points(page, points, training)
            assert page.inner_text("dd .tag") == "training"
            facts = page.inner_text("dl.facts").lower()
            assert re.search(r"step\s+[\d,]+", facts) and re.search(r"remaining\s+at most", facts)
            assert page.locator(".terms .chart").count() >= 4
            training.send_signal(signal.SIGINT)
            assert training.wait() == 130
            page.wait_for_selector("dd .tag.stopped")
            assert page.evaluate("window.opened")
    finally:
        training.kill()
        training.wait()
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_coordinators_page_during_a_run(browser: "Browser", tmp_path: Path, width: int) -> None:
    write(tmp_path)
    (tmp_path / "coordinator.toml").write_text(COORDINATOR.replace("epochs = 12", "epochs = 5000"))
    coordinator = start(tmp_path, "coordinator", "coordinator.toml", "--quiet")
    processes = [coordinator]
    try:
        port = wait_for(tmp_path / "main", "status_server", coordinator)["port"]
        listening = wait_for(tmp_path / "main", "listening", coordinator)["address"]
        with open_page(browser, f"http://127.0.0.1:{port}/", width) as page:
            page.evaluate("window.opened = true")
            page.wait_for_selector(".tag.waiting, .tag.absent")
            address = str(listening).rpartition(":")[2]
            (tmp_path / "shop.toml").write_text(SHOP.replace("PORT", address))
            processes.append(start(tmp_path, "party", "shop.toml", "--quiet"))
            points = wait_for_points(page, 1, processes[1])
            wait_for_points(page, points, processes[1])
            page.locator(".tag.online").nth(1).wait_for()
            table = page.inner_text("section[aria-label=Parties]")
            assert all(each in table for each in ("stored", "bank", "shop"))
            assert re.search(r"\d (k|M)B", table)
            assert "head 1" in page.inner_text("section[aria-label=Heads]")
            assert page.locator(".heatmap td.heat").count() >= 4
            processes[1].kill()
            page.wait_for_selector("section[aria-label=Parties] >> text=absent")
            assert page.evaluate("window.opened")
        # The state folder shows the same uploads and heads.
        server = DashboardServer(tmp_path / "main")
        try:
            with open_page(browser, f"{server.url}#/run/main", width) as page:
                page.click("text=head 1")
                wait_for_points(page, 1, coordinator)
                assert "shop" in page.inner_text("section[aria-label=Parties]")
        finally:
            server.close()
    finally:
        for process in reversed(processes):
            process.kill()
            process.communicate()

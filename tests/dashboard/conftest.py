"""Runs and a browser for the tests of the dashboard."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.dashboard.dashboard_runs import make_regression_run, make_runs
from tests.make_once import make_once

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROME = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train and evaluate a run of tables and one of images; return the folder of the runs."""
    return make_once(tmp_path_factory, "dashboard", make_runs) / "runs"


@pytest.fixture(scope="session")
def regression_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train and evaluate a run of regression; return the folder of the run."""
    return make_once(tmp_path_factory, "numbers", make_regression_run) / "runs"


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Start an installed Chromium or Chrome without a window.

    Playwright keeps an event loop running in this thread, in which tests of other modules could not
    call `asyncio.run`; so the browser ends with the module.
    """
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome", CHROME)
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("needs Chromium or Chrome")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()

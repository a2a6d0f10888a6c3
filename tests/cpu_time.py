"""Measure the CPU time of tests: of the test process and of the processes it started.

Wall time depends on what else the machine does; CPU time hardly does. A process counts once it has
ended and its parent has waited for it.
"""

import resource
from collections import Counter
from typing import Any

import pytest

ATTRIBUTE = "cpu_seconds"


def process_seconds() -> float:
    """Return the CPU time of this process and of its ended children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


class CpuTime:
    """Measure every phase of every test; print a table by folder at the end.

    Workers of pytest-xdist measure and send the seconds with their reports.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._by_test: Counter[str] = Counter()
        self._all_processes = 0.0

    def pytest_collection_finish(self) -> None:
        self._since = process_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        report = yield
        now = process_seconds()
        setattr(report, ATTRIBUTE, now - self._since)
        self._since = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._by_test[report.nodeid] += getattr(report, ATTRIBUTE, 0.0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[ATTRIBUTE] = process_seconds()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._all_processes += getattr(node, "workeroutput", {}).get(ATTRIBUTE, 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        own = resource.getrusage(resource.RUSAGE_SELF)
        total = self._all_processes + own.ru_utime + own.ru_stime
        if not self._all_processes:
            total = process_seconds()
        by_folder: Counter[str] = Counter()
        for test, seconds in self._by_test.items():
            by_folder[folder_of(test)] += seconds
        by_folder["start and collection"] = total - sum(self._by_test.values())
        terminalreporter.section("CPU seconds by folder")
        for folder, seconds in by_folder.most_common():
            terminalreporter.write_line(f"{seconds:7.1f} {folder}")
        terminalreporter.write_line(f"{total:7.1f} in all")


def folder_of(test: str) -> str:
    """Return the folder of a test below the folder of all tests, or its file."""
    parts = test.partition("::")[0].split("/")
    depth = 2 if parts[0] == "tests" else 1
    return "/".join(parts[:depth])

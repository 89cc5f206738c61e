"""A plugin of pytest: at the end of a run, which tests were late for what, and how long each folder took."""

from collections import defaultdict

import pytest

SHOWN_CHARS = 300


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    spent = defaultdict[str, float](float)
    for report in _reports(terminalreporter):
        spent[_folder(report.nodeid)] += report.duration
    late = terminalreporter.stats.get("rerun", [])
    longest = sorted(spent.items(), key=lambda item: -item[1])
    terminalreporter.write_line("seconds by folder: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in longest))
    terminalreporter.write_line("  ".join([f"late: {len(late)}", *(each.nodeid for each in late)]))
    for each in late:
        terminalreporter.write_line(f"  {_folder(each.nodeid)}: {_why(each)[:SHOWN_CHARS]}")


def _why(late: pytest.TestReport) -> str:
    crash = getattr(late.longrepr, "reprcrash", None)
    return crash.message if crash else late.longreprtext


def _reports(terminalreporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    each = (report for reports in terminalreporter.stats.values() for report in reports)
    return [report for report in each if isinstance(report, pytest.TestReport)]


def _folder(nodeid: str) -> str:
    return nodeid.removeprefix("tests/").partition("/")[0].partition("::")[0]

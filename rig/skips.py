"""`--allow-skips PATTERN` for pytest: a run fails where a test is skipped for another reason.

For a conftest.py: `add_option` is for its pytest_addoption, and it has `pytest_sessionfinish`.
"""

from __future__ import annotations

import re

import pytest


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--allow-skips", metavar="PATTERN", help="fail if a test is skipped for another reason"
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    allowed = session.config.getoption("--allow-skips")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if allowed is None or reporter is None:
        return
    for skipped in reporter.stats.get("skipped", []):
        *_, reason = skipped.longrepr
        if not re.search(allowed, reason):
            reporter.write_line(f"\n{skipped.nodeid} may not be skipped: {reason}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

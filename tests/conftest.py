"""Fixtures and options for all tests: a separate history; tests of the network, a rack or a real GPU run on request."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rigwright.core import secrets
from rigwright.inventory import secret_sources
from tests.report.chromium import Chromium


@pytest.fixture(scope="session", autouse=True)
def own_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Puts the history of test runs, also of child processes, into a temporary folder instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIGWRIGHT_HISTORY", str(tmp_path_factory.mktemp("history") / "history.sqlite"))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("RIGWRIGHT_HISTORY_DAYS", raising=False)
        yield


@pytest.fixture(autouse=True)
def no_known_secrets() -> Iterator[None]:
    """Forgets the secrets of a test, whose texts would be replaced in the output of the next."""
    yield
    secrets.forget()
    secret_sources.forget()


@pytest.fixture(scope="session")
def as_root() -> None:
    """Fails the test when it does not run as root; such tests are never skipped."""
    if os.geteuid() != 0:
        pytest.fail("this test needs root: sudo scripts/test; tests without root: scripts/test --quick")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """Yields a browser that all tests share."""
    with Chromium() as browser:
        yield browser


NOT_QUICK = {
    "tests/end_to_end/": "boots simulated hosts as root",
    "tests/lab/": "tests the lab, whose simulators a C compiler builds",
    "tests/onhost/": "runs the programs for hosts over the lab's simulators",
    "tests/test_release.py": "builds a wheel",
    "tests/cli/test_install.py": "builds a wheel and installs it",
    "tests/checks/test_p2p.py": "tests GPU transfers over the lab's simulators",
    "tests/engine/test_nccl_programs.py": "runs nccl-tests over the lab's simulators",
    "tests/driver/test_apt_pin.py": "runs the real apt",
    "tests/driver/test_debian_archive.py": "runs the real apt",
    "tests/security/test_attack_01_second_key.py": "makes keys and runs the real apt",
    "tests/security/test_attack_13_apt_sources_by_grep.py": "runs the real apt",
    "tests/security/test_attack_20_locks_of_others.py": "runs the real apt",
    "tests/security/test_demo_as_root.py": "needs root: folders of another user",
    "tests/security/test_downloads.py": "runs pip, debootstrap and gpg",
    "tests/security/test_lock_audit.py": "runs pip",
    "tests/security/test_attack_06_closed_output.py": "starts the program many times",
    "tests/security/test_attack_07_signals.py": "starts the program many times",
    "tests/security/test_attack_15_slow_answers.py": "reads 4 MiB with every fact",
    "tests/security/test_endings_are_recorded.py": "starts the program many times",
    "tests/security/test_units.py": "runs systemd-analyze",
    "tests/inventory/test_ansible.py": "starts Ansible for each inventory",
    "tests/fleet/test_dask_executor.py": "starts a Dask cluster",
    "tests/security/test_attack_17_worker_pickle.py::test_tls_from_end_to_end": "starts a Dask cluster",
}
"""Folders and files that --quick leaves out, with the reason. It also leaves out tests in a browser."""
FIRST = (
    "tests/end_to_end/test_driver.py",
    "tests/test_cases.py",
    "tests/end_to_end/test_bad_input_host.py",
    "tests/test_properties.py",
    "tests/end_to_end/test_provision.py",
    "tests/end_to_end/test_rigs.py",
    "tests/end_to_end/test_faults.py",
)
"""Files that run first, mostly the longest: a long file that starts late would run alone at the end.

The two files without hosts use a processor core while the lab makes its base image.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --quick."""
    parser.addoption("--quick", action="store_true", help="leave out what needs root, the lab, a browser or minutes")


def _is_left_out(item: pytest.Item, markexpr: str, quick: bool) -> bool:
    """Returns whether to deselect a test: `network`, `rack` and `gpu` unless `-m` names them, slow tests with --quick."""
    if any(item.get_closest_marker(mark) and mark not in markexpr for mark in ("network", "rack", "gpu")):
        return True
    in_browser = "chromium" in getattr(item, "fixturenames", ())
    return quick and (in_browser or item.nodeid.startswith(tuple(NOT_QUICK)))


def _place(item: pytest.Item) -> int:
    """Returns the position of a test's file in FIRST; all other files come after them, in their order."""
    file = item.nodeid.partition("::")[0]
    return FIRST.index(file) if file in FIRST else len(FIRST)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests that do not run here, and puts the files of FIRST first."""
    markexpr, quick = config.getoption("markexpr") or "", config.getoption("quick")
    left_out = [item for item in items if _is_left_out(item, markexpr, quick)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = sorted((item for item in items if item not in set(left_out)), key=_place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Reports the tests that --quick left out."""
    if config.getoption("quick"):
        terminalreporter.section("left out by --quick")
        for path, reason in NOT_QUICK.items():
            terminalreporter.line(f"{path:38} {reason}")
        terminalreporter.line(f"{'tests that use a browser':38} need Chromium")

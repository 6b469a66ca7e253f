"""Fixtures and options for all tests: a separate history; tests of the network, a rack or a real GPU run on request."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

import hypothesis
import pytest

from rigwright.core import secrets
from rigwright.core.files import disk_cache
from rigwright.core.host_folders import UNTIL_BOOT
from rigwright.inventory import secret_sources
from tests.report.chromium import Chromium

# An example may take long on a busy machine; each test has pytest's timeout.
hypothesis.settings.register_profile("rigwright", deadline=None)
hypothesis.settings.load_profile("rigwright")


disk_cache.enabled = False  # tests replace what the catalogue is made of


@pytest.fixture(scope="session", autouse=True)
def own_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Puts the history of test runs, also of child processes, into a temporary folder instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIGWRIGHT_HISTORY", str(tmp_path_factory.mktemp("history") / "history.sqlite"))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path_factory.mktemp("dask")))
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
    "tests/vm/": "starts virtual machines as root",
    "tests/lab/": "tests the lab, whose simulators a C compiler builds",
    "tests/docs/": "copies the checkout, and runs pytest there",
    "tests/onhost/": "runs the programs for hosts over the lab's simulators",
    "tests/features/*/host/": "runs the programs for hosts over the lab's simulators",
    "tests/test_release.py": "builds a wheel",
    "tests/cli/test_install.py": "builds a wheel and installs it",
    "tests/checks/test_p2p.py": "tests GPU transfers over the lab's simulators",
    "tests/engine/test_nccl_programs.py": "runs nccl-tests over the lab's simulators",
    "tests/ssh/test_batch_script.py::test_answers_that_fill_a_tmpfs": "needs root: a mount",
    "tests/engine/test_trial.py::test_a_full_disk": "needs root: a mount",
    "tests/driver/test_apt_pin.py": "runs the real apt",
    "tests/driver/test_debian_archive.py": "runs the real apt",
    "tests/security/test_attack_01_second_key.py": "makes keys and runs the real apt",
    "tests/security/test_attack_13_apt_sources_by_grep.py": "runs the real apt",
    "tests/security/test_attack_20_locks_of_others.py": "runs the real apt",
    "tests/security/test_demo_as_root.py": "needs root: folders of another user",
    "tests/security/test_downloads.py": "runs pip, mmdebstrap and gpg",
    "tests/security/test_lock_audit.py": "runs pip",
    "tests/security/test_attack_06_closed_output.py": "starts the program many times",
    "tests/security/test_attack_07_signals.py": "starts the program many times",
    "tests/security/test_attack_15_slow_answers.py": "reads 4 MiB with every fact",
    "tests/security/test_endings_are_recorded.py": "starts the program many times",
    "tests/security/test_units.py": "runs systemd-analyze",
    "tests/inventory/test_ansible.py": "starts Ansible for each inventory",
    "tests/fleet/test_dask_workers.py": "starts a Dask cluster",
    "tests/fleet/test_kills.py": "starts Dask clusters",
    "tests/security/test_attack_17_worker_pickle.py::test_tls_from_end_to_end": "starts a Dask cluster",
}
"""Folders and files that --quick leaves out, with the reason. It also leaves out tests in a browser."""
BUSY = (
    "tests/checks/test_p2p.py",
    "tests/onhost/test_nccl_p2p.py",
    "tests/onhost/test_gpu_limits.py",
    "tests/features/fleet_report/test_page_browser.py",
    "tests/report/html/test_host_page_browser.py",
    "tests/security/test_attack_16_hostile_inventory.py",
    "tests/security/test_attack_15_slow_answers.py",
    "tests/test_release.py",
    "tests/test_properties.py",
    "tests/security/test_lock_audit.py",
    "tests/cli/test_bad_input.py",
    "tests/features/explain/test_pasted_text.py",
    "tests/security/test_downloads.py",
    "tests/security/test_attack_07_signals.py",
    "tests/features/explain/test_topics.py",
)
"""Files that boot no host and take the most processor time: the other workers run them while the first host's images
are made."""
FIRST = (
    "tests/end_to_end/test_driver.py",
    *BUSY,
    "tests/end_to_end/test_bad_input_host.py",
    "tests/end_to_end/test_provision.py",
    "tests/end_to_end/test_plugs.py",
    "tests/end_to_end/test_required_test.py",
    "tests/end_to_end/test_rigs.py",
    "tests/end_to_end/test_faults.py",
    "tests/end_to_end/test_lab_rig_host.py",
    "tests/end_to_end/test_lab_host.py",
    "tests/end_to_end/test_secure_boot.py",
    "tests/end_to_end/test_limits_find.py",
    "tests/end_to_end/test_stress.py",
    "tests/end_to_end/test_guard.py",
    "tests/end_to_end/test_trial.py",
    "tests/end_to_end/test_prebuilt.py",
)
"""Files that run first. A long file that starts late would run alone at the end.

test_driver.py needs the images of every distribution. On a machine without them a worker makes them for one to two
minutes.
"""


ORDER_SEED = "RIGWRIGHT_ORDER_SEED"
"""The environment variable with the seed of a random order of the files, and of the tests in each file."""
MARKED = ("network", "nightly", "rack", "trials", "vm", "plugs", "ways", "gpu")
"""The marks of tests that run only when `-m` names them."""


def pytest_configure() -> None:
    """Lets tests press Ctrl-C, also in the background. Chooses the seed of the sample of cuts, unless the environment
    has one.

    Workers get it from here.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's `&` leaves it so, and programs inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("RIGWRIGHT_PLUGS_SEED", str(random.randrange(10**6)))


_kept_before = os.path.exists(UNTIL_BOOT)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes what scripts for hosts that ran here as root have kept, once all tests have ended."""
    if not _kept_before and not hasattr(config, "workerinput"):
        shutil.rmtree(UNTIL_BOOT, ignore_errors=True)


def pytest_report_header() -> list[str]:
    """Returns the seeds with which the same cuts, or the same random order, run again."""
    return [f"{name}={os.environ[name]}" for name in ("RIGWRIGHT_PLUGS_SEED", ORDER_SEED) if name in os.environ]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --quick."""
    parser.addoption("--quick", action="store_true", help="leave out what needs root, the lab, a browser or minutes")


def _is_left_out(item: pytest.Item, markexpr: str, quick: bool) -> bool:
    """Returns whether to deselect a test: those of MARKED unless `-m` names them, slow tests with --quick."""
    if any(item.get_closest_marker(mark) and mark not in markexpr for mark in MARKED):
        return True
    in_browser = "chromium" in getattr(item, "fixturenames", ())
    return quick and (in_browser or any(fnmatchcase(item.nodeid, f"{place}*") for place in NOT_QUICK))


def _without_recording() -> tuple[str, ...]:
    """Returns the names of the virtual machines of tests/vm/test_recorded.py that have no recording on this machine."""
    from tests.vm import recorded  # it imports the lab, which unit tests do not need

    return recorded.missing()


def _needs_recording(item: pytest.Item, absent: tuple[str, ...]) -> bool:
    """Returns whether a test needs a recorded virtual machine that this machine has no recording of."""
    marker = item.get_closest_marker("recorded")
    return marker is not None and marker.args[0] in absent


def _place(item: pytest.Item) -> int:
    """Returns the position of a test's file in FIRST; all other files come after them, in their order."""
    file = item.nodeid.partition("::")[0]
    return FIRST.index(file) if file in FIRST else len(FIRST)


def in_random_order(items: Iterable[pytest.Item], seed: str) -> list[pytest.Item]:
    """Returns the tests, file after file, with the files and the tests of each file in the random order of a seed."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    order = random.Random(seed)
    return [item for file in order.sample(list(files.values()), len(files)) for item in order.sample(file, len(file))]


@pytest.hookimpl(tryfirst=True)  # pytest then brings those together that share a parameter of a fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests that do not run here, and puts the files of FIRST first; with ORDER_SEED all are in random
    order."""
    markexpr, quick = config.getoption("markexpr") or "", config.getoption("quick")
    absent = _without_recording() if not quick and any(item.get_closest_marker("recorded") for item in items) else ()
    left_out = [item for item in items if _is_left_out(item, markexpr, quick) or _needs_recording(item, absent)]
    config.hook.pytest_deselected(items=left_out)
    run = sorted((item for item in items if item not in set(left_out)), key=_place)
    items[:] = in_random_order(run, os.environ[ORDER_SEED]) if ORDER_SEED in os.environ else run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Reports the tests that --quick left out, and those of virtual machines that have no recording here."""
    if not config.getoption("quick") and not config.getoption("file_or_dir") and (absent := _without_recording()):
        terminalreporter.section("left out: no recorded virtual machines")
        terminalreporter.line(
            f"tests/vm/test_recorded.py: {', '.join(absent)}; sudo scripts/test --vm makes the recordings"
        )
    if config.getoption("quick"):
        terminalreporter.section("left out by --quick")
        for path, reason in NOT_QUICK.items():
            terminalreporter.line(f"{path:38} {reason}")
        terminalreporter.line(f"{'tests that use a browser':38} need Chromium")

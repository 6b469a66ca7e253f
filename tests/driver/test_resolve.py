"""The driver from two sources, whose facts have the same name, so that a case cannot distinguish them; and pins."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rigwright.core.command import Result
from rigwright.core.desired import CudaSource, Driver
from rigwright.core.errors import HostError
from rigwright.core.numbers import numbers
from rigwright.driver.apt_pin import pin_path, pin_text
from rigwright.driver.resolve import PIN, pinned, resolved, upstream
from rigwright.facts import Fact, FactStore, Missing, Unreadable, files, parsed
from rigwright.facts.apt import archive
from rigwright.operations import driver

OWN = "http://archive.example/ubuntu jammy-updates/restricted amd64 Packages"
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"
SERVER = ("nvidia-headless-535-server", "nvidia-utils-535-server")
DESKTOP = ("nvidia-headless-535", "nvidia-utils-535")
OLD, NEW = "535.171.04-0ubuntu1", "535.183.01-0ubuntu1"


def _offer(*rows: tuple[str, str, Iterable[str]], kind: str = "support") -> str:
    """What the script of `archive.offered` prints for packages; a row has their source, version and names."""
    packages = [(name, version, source) for source, version, names in rows for name in names]
    madison = "".join(f"{name} | {version} | {source}\n" for name, version, source in packages)
    show = "".join(
        f"Package: {name}\nVersion: {version}\nDescription: NVIDIA {kind}\n\n" for name, version, _ in packages
    )
    return f"--key\nKEY\n--madison\n{madison}--show\n{show}"


NOTHING = _offer()
TRANSITIONAL = _offer((OWN, "535.309.01-0ubuntu0.22.04.2", SERVER), kind="(transitional package)")
OWN_OLD, OF_NVIDIA = _offer((OWN, OLD, DESKTOP)), _offer((f"{NVIDIA}  Packages", NEW, DESKTOP))


class TwoSources:
    """A host with one answer for the distribution's archive and one for NVIDIA's repository. `version`: of the packages
    that a simulated installation has."""

    def __init__(self, distribution: str, nvidia: str, version: str = NEW) -> None:
        self.distribution, self.nvidia = distribution, nvidia
        self.simulated = "".join(f"Inst {name} ({version} NVIDIA:cuda [amd64])\n" for name in DESKTOP) + "rc=0\n"
        self.asked: set[str] = set()
        self.rounds = 0

    def answer(self, fact: Fact[Any]) -> Result:
        name, remote = fact.name, NVIDIA in fact.command.argv
        self.asked.add(f"{name.partition('(')[0]}{' of NVIDIA' if remote else ''}")
        answers = {
            "apt_sources.sources": "",
            "pci.gpus": "0000:06:00.0 0x030200 1db1\n",
            "pci.nvswitches": "0000:06:00.0 0x030200 1db1\n",
            "system.os_release": "ID=ubuntu\nVERSION_ID=22.04\n",
            "apt_archive.offered": self.nvidia if remote else self.distribution,
            "apt_archive.simulated": self.simulated,
        }
        return Result(0, answers.get(name.partition("(")[0], "absent\n").encode())

    def ask(self, function: Callable[..., Any], *args: Any, **parameters: Any) -> Any:
        """Calls the function, reads the facts that it needs, and returns its result."""
        store = FactStore()
        for self.rounds in range(9):
            try:
                result = function(store, *args, **parameters)
                return list(result) if inspect.isgenerator(result) else result
            except Missing as wanted:
                store.learn((fact, self.answer(fact)) for fact in wanted.facts)
        raise AssertionError("facts that never settle")


@pytest.mark.parametrize(
    ("distribution", "nvidia", "wanted", "version", "source", "reason"),
    [
        (TRANSITIONAL, OF_NVIDIA, Driver("535"), NEW, "cuda",
         "the distribution's nvidia-headless-535-server is only transitional"),
        (NOTHING, OF_NVIDIA, Driver("535"), NEW, "cuda", "the distribution's archive does not have it"),
        (OWN_OLD, OF_NVIDIA, Driver("535", source="cuda"), NEW, "cuda", "the inventory says so"),
        (OWN_OLD, "unused", Driver("535"), OLD, "distribution", "the distribution's archive has the real branch"),
        (OWN_OLD, OF_NVIDIA, Driver("535", "535.183.01"), NEW, "cuda", "the distribution's archive does not have it"),
    ],
    ids=["only transitional", "not in the distribution", "wanted from NVIDIA", "in the distribution",
         "a version of NVIDIA"],
)  # fmt: skip
def test_the_source(distribution: str, nvidia: str, wanted: Driver, version: str, source: str, reason: str) -> None:
    host = TwoSources(distribution, nvidia, version)
    found = host.ask(resolved, wanted, None)
    assert (found.version, found.source, found.reason) == (version.partition("-")[0], source, reason)
    assert found.closure == dict.fromkeys(DESKTOP, version)
    assert ("apt_archive.simulated of NVIDIA" in host.asked) == (source == "cuda")
    assert "apt_archive.offered" in host.asked or wanted.source == "cuda"
    assert (wanted.source == "cuda") != ("apt_archive.offered" in host.asked)


@pytest.mark.parametrize(
    ("distribution", "nvidia"),
    [
        (_offer((OWN, OLD, SERVER[:1]), (OWN, "535.161.08-0ubuntu1", SERVER[1:])), NOTHING),
        (NOTHING, _offer((f"{NVIDIA}  Packages", NEW, DESKTOP[:1]), (OWN, OLD, DESKTOP[1:]))),
        (NOTHING, OWN_OLD),
    ],
    ids=["a family of two versions", "a family of two sources", "only the distribution's in the answer about NVIDIA"],
)
def test_no_source_has_a_driver(distribution: str, nvidia: str) -> None:
    with pytest.raises(HostError, match="no source has branch 535"):
        TwoSources(distribution, nvidia).ask(resolved, Driver("535"), None)


@pytest.mark.parametrize(
    ("host", "wanted", "message"),
    [
        (TwoSources(TRANSITIONAL, OF_NVIDIA), Driver("535", "535.172.04"),
         "535.172.04 was never a release\n"
         "  expected: a release, such as 535.171.04 or 535.179; the sources have 535.183.01 (cuda); "
         "asked were distribution and cuda"),
        (TwoSources(NOTHING, NOTHING), Driver("499"),
         "driver.branch: no source has branch 499, and the catalogue knows no branch 499\n"
         "  expected: the sources have no real driver 499; asked were distribution and cuda\n"
         "  fix:      another branch, such as 495 or 510: invoke explain 495 shows what it supports"),
    ],
    ids=["a version", "a branch"],
)  # fmt: skip
def test_what_was_never_released_names_its_neighbours(host: TwoSources, wanted: Driver, message: str) -> None:
    with pytest.raises(HostError) as caught:
        host.ask(resolved, wanted, None)
    assert message in str(caught.value)


def test_nvidia_s_repository_is_added_for_a_driver_from_it() -> None:
    host = TwoSources(TRANSITIONAL, OF_NVIDIA)
    changes = host.ask(driver.repository_present, driver=Driver("535"))
    assert [change.subject for change in changes] == [
        "/usr/share/keyrings/rigwright-cuda.asc",
        "/etc/apt/sources.list.d/rigwright-cuda.list",
        "apt-get update",
    ]
    assert changes[0].commands[0].stdin == b"KEY\n"
    assert f"] {NVIDIA} /\n" in changes[1].commands[0].stdin.decode()
    assert host.rounds <= 6


def test_the_answers_of_two_sources_have_two_names() -> None:
    """Reports and messages identify a fact by its name."""
    repository = archive.Repository(NVIDIA, f"{NVIDIA}/key", "")
    assert archive.offered(("a",)) != archive.offered(("a",), repository)
    assert archive.offered(("a",)).name != archive.offered(("a",), repository).name
    assert archive.simulated(("a=1",), "").name != archive.simulated(("a=1",), "", repository).name


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (f"BADSIG {NVIDIA}", f"{NVIDIA} has no valid signature by the key FF of {NVIDIA}/key"),
        ("BADKEY AA BB", f"the key file {NVIDIA}/key holds AA and BB, not the expected key FF"),
        ("W: x\nE: The repository is not signed.", "apt cannot read its sources: E: The repository is not signed."),
        ("", "apt cannot read its sources: no message"),
    ],
)
def test_why_a_repository_cannot_be_read(error: str, reason: str) -> None:
    fact = archive.offered(("a",), archive.Repository(NVIDIA, f"{NVIDIA}/key", "FF"))
    value = parsed(fact, Result(1, b"", error.encode()))
    assert isinstance(value, Unreadable)
    assert str(value) == reason


def test_a_mirror_of_nvidia_s_repository() -> None:
    mirror = "https://mirror.example/cuda"
    with pytest.raises(HostError):
        TwoSources(TRANSITIONAL, "unused").ask(resolved, Driver("535"), CudaSource(f"{mirror}/", fingerprint="AB" * 20))
    fact = archive.offered(("a",), archive.Repository(mirror, f"{mirror}/3bf863cc.pub", "AB" * 20))
    assert fact.command.argv[4:7] == (mirror, f"{mirror}/3bf863cc.pub", "AB" * 20)


versions = st.builds(
    lambda branch, rest: ".".join([str(branch), *rest]),
    st.integers(400, 699),
    st.lists(st.from_regex(r"[0-9]{2,3}", fullmatch=True), min_size=1, max_size=2),
)
package_names = st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,20}", fullmatch=True)
suffixes = st.sampled_from(["", "-0ubuntu1", "-1~deb12u1", "+really1-2", "~rc1-1"])


@given(versions, st.sampled_from(["", "1:", "2:"]), suffixes)
def test_upstream_of_any_package_version(version: str, epoch: str, rest: str) -> None:
    assert upstream(f"{epoch}{version}{rest}") == version


@given(versions, versions)
def test_releases_are_ordered_by_number(one: str, other: str) -> None:
    parts = [[int(part) for part in version.split(".")] for version in (one, other)]
    assert (numbers(one) < numbers(other)) == (parts[0] < parts[1])


def _with_pin(text: str) -> FactStore:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return FactStore({files.file(pin_path(PIN)): files.File("file", "0644", "root", "root", digest, text.encode())})


@given(versions, st.lists(package_names, min_size=1, max_size=6, unique=True), st.sampled_from(["", "cuda-drivers*"]))
def test_a_pin_says_again_what_was_pinned(version: str, names: list[str], block: str) -> None:
    text = pin_text(sorted(names), f"{version}*", block)
    assert all(len(stanza.strip().splitlines()) in (3, 4) for stanza in text.split("\n\n"))
    branch = version.split(".")[0]
    for wanted in (Driver(branch), Driver(branch, version), Driver(version)):
        found = pinned(_with_pin(text), wanted)
        assert found is not None
        assert (found.version, sorted(found.closure)) == (version, sorted(names))
    assert pinned(_with_pin(text), Driver(str(int(branch) + 1))) is None


@pytest.mark.parametrize(
    ("pin", "wanted"), [("535.171.04", "535.17"), ("550.90.07", "550.90"), ("535.98", "535.98.01")]
)
def test_a_pin_of_another_version_is_none(pin: str, wanted: str) -> None:
    text = pin_text(["nvidia-utils-535"], f"{pin}*")
    assert pinned(_with_pin(text), Driver(wanted.split(".")[0], wanted)) is None

"""Properties that hold for every input: quoting, facts with unusual names, GRUB menus, ranges, pins.

Also tests of operations that tests/cases cannot express: the files are too long, or two facts have the same name.
"""

from __future__ import annotations

import dataclasses
import grp
import hashlib
import inspect
import json
import os
import pwd
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rigwright import inventory
from rigwright.core import command as core_command
from rigwright.core import host_ranges
from rigwright.core.change import Change, Note
from rigwright.core.command import Command, Result, command, script
from rigwright.core.desired import Clocks, CudaSource, Driver, Limits
from rigwright.core.errors import HostError, InputError, UsageError
from rigwright.core.numbers import numbers
from rigwright.core.secrets import Secret
from rigwright.core.templates.host_files import SHIPPED
from rigwright.core.yaml_source import loads
from rigwright.driver.apt_pin import pin_path, pin_text
from rigwright.driver.resolve import PIN, pinned, resolved, upstream
from rigwright.facts import Fact, FactStore, Missing, Unavailable, Unreadable, files, kernel, parsed, pci
from rigwright.facts import grub as grub_facts
from rigwright.facts.apt import archive as apt_archive
from rigwright.facts.gpu import gpus as gpu
from rigwright.facts.grub import default_entry
from rigwright.facts.plain import plain
from rigwright.operations import apt, driver, file, limits
from tests import nvidia_smi, test_cases

ME = pwd.getpwuid(os.getuid()).pw_name
MY_GROUP = grp.getgrgid(os.getgid()).gr_name
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
hostile = words | st.sampled_from(
    ["", "-rf", "--", "a b", "'", '"', "$(reboot)", "`x`", "\n", "a\nb", "*", "~", "\\", "é"]
)


STATE = tempfile.TemporaryDirectory(prefix="rigwright-")  # in place of /var/lib/rigwright of this machine


def run(cmd: Command) -> Result:
    """Runs the command on this machine, with a directory of its own for what rigwright records, and returns its
    result."""
    argv = [word.replace("/var/lib/rigwright", STATE.name) for word in cmd.argv]
    done = subprocess.run(argv, input=cmd.stdin, capture_output=True, timeout=60, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


# --- quoting


@settings(max_examples=60, deadline=None)
@given(st.lists(hostile, max_size=6))
def test_a_real_shell_reads_the_words_again(argv: list[str]) -> None:
    show = ("sh", "-c", 'for word; do printf "%s\\0" "$word"; done', "sh", *argv)
    text = core_command.quote(show)
    done = subprocess.run(["sh", "-c", text], capture_output=True, timeout=20, check=True)
    assert done.stdout == b"".join(word.encode() + b"\0" for word in argv)
    assert shlex.split(str(Command(show))) == list(show)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=500), hostile)
def test_stdin_and_words_survive_a_shell(stdin: bytes, word: str) -> None:
    text = core_command.with_stdin(script('cat; printf %s "$1"', word, stdin=stdin))
    done = subprocess.run(["sh"], input=f"{text}\n".encode(), capture_output=True, timeout=20, check=True)
    assert done.stdout == stdin + word.encode()


@pytest.mark.parametrize("show", [str, repr, "{}".format, "{!r}".format, "%s".__mod__, plain])
def test_a_secret_is_never_shown(show: Callable[[Secret], str]) -> None:
    assert show(Secret("hunter2")) == "(secret)"
    assert "hunter2" not in str(dataclasses.make_dataclass("Holder", ["one"])(Secret("hunter2")))
    assert Secret("hunter2").reveal() == "hunter2"


# --- facts with arguments


def _fact_makers() -> list[Any]:
    return [
        pytest.param(thing, id=name)
        for name, thing in test_cases.facts_by_name().items()
        if not isinstance(thing, Fact) and _takes_text(thing)
    ]


def _takes_text(function: Callable[..., Fact[Any]]) -> bool:
    """Whether an argument of a fact can hold a text; a number can hold nothing that a shell reads."""
    hints = get_type_hints(function)
    return any(hints[name] is not int for name in inspect.signature(function).parameters)


def _made(function: Callable[..., Fact[Any]], word: str) -> Fact[Any]:
    """Makes the fact with `word` as the value of every text argument, and 7 as every number."""
    hints = get_type_hints(function)
    given_words: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if hints[name] is str:
            given_words.append(word)
        elif hints[name] is int:
            given_words.append(7)
        elif parameter.default is inspect.Parameter.empty:
            given_words.append((word,))
    return function(*given_words)


HOSTILE = "--x' \"$(reboot)`y`;\n&z"


@pytest.mark.parametrize("function", _fact_makers())
def test_no_argument_of_a_fact_is_read_by_a_shell(function: Callable[..., Fact[Any]]) -> None:
    argv = _made(function, HOSTILE).command.argv
    assert HOSTILE in argv, "the argument is a word of its own"
    assert not [word for word in argv if "reboot" in word and word != HOSTILE], "and part of no other word"
    if argv[:2] == ("sh", "-c"):
        assert HOSTILE not in argv[2:4]


@pytest.mark.parametrize("function", _fact_makers())
def test_no_argument_of_a_fact_is_read_as_an_option(function: Callable[..., Fact[Any]]) -> None:
    """An argument that begins with a dash comes after `--`; a script receives it as `$1` and quotes it there."""
    argv = _made(function, HOSTILE).command.argv
    if argv[:2] == ("sh", "-c"):
        text = re.sub(r"'[^']*'", "", argv[2])
        assert not re.findall(r"(?<![\"/=])\$[1-9@]", text), "unquoted $1"
    else:
        assert argv.index("--") < len(argv) - 1 - argv[::-1].index(HOSTILE)


@pytest.mark.parametrize("function", _fact_makers())
def test_another_argument_is_another_fact(function: Callable[..., Fact[Any]]) -> None:
    """Facts are equal if name and command are: facts with different arguments must not share a result or name."""
    one, other, again = _made(function, "a"), _made(function, "b"), _made(function, "a")
    assert one == again
    assert one != other
    assert one.name != other.name


names_of_files = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)


@settings(max_examples=40, deadline=None)
@given(names_of_files, st.binary(max_size=200) | st.just(b"absent\n"), st.sampled_from([0o644, 0o600, 0o4755]))
def test_a_file_is_read_as_it_stands(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes, mode: int
) -> None:
    path = tmp_path_factory.mktemp("files") / name
    fact = files.file(str(path))
    assert parsed(fact, run(fact.command)) is None
    path.write_bytes(content)
    path.chmod(mode)
    found = parsed(fact, run(fact.command))
    wanted = files.File("file", f"{mode:04o}", ME, MY_GROUP, hashlib.sha256(content).hexdigest(), content)
    assert found == wanted


def test_a_long_file_is_known_by_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "long"
    for size in (65536, 65537):
        path.write_bytes(b"x" * size)
        found = parsed(files.file(str(path)), run(files.file(str(path)).command))
        assert found.sha256 == hashlib.sha256(b"x" * size).hexdigest()


@pytest.mark.parametrize(("age", "newer"), [(-5, False), (5, True), (None, True)])
def test_newer_by_the_host_s_own_files(tmp_path: Path, age: int | None, newer: bool) -> None:
    """`age`: seconds by which the first file is newer than the second; None: the second file does not exist."""
    first, second = tmp_path / "in 'i'trd", tmp_path / "-conf"
    first.write_text("x")
    os.utime(first, (1000 + (age or 0), 1000 + (age or 0)))
    if age is not None:
        second.write_text("x")
        os.utime(second, (1000, 1000))
    fact = kernel.newer(str(first), str(second))
    assert parsed(fact, run(fact.command)) is newer


# --- files and directories, made on this machine


def _applied(function: Callable[..., Any], **parameters: Any) -> tuple[list[Change], list[Change]]:
    """Applies an operation on this machine; returns its changes before and after its commands have run."""
    found = []
    for _ in range(2):
        store = FactStore()
        while True:
            try:
                found.append(list(function(store, **parameters)))
                break
            except Missing as wanted:
                store.learn((fact, run(fact.command)) for fact in wanted.facts)
        for change in found[-1]:
            for cmd in change.commands:
                result = run(cmd)
                assert result.code == 0, result.error_text
    return found[0], found[1]


@settings(max_examples=10, deadline=None)
@given(names_of_files, words, words, st.sampled_from(["0644", "0600", "755"]))
def test_a_file_is_written_as_wanted(
    tmp_path_factory: pytest.TempPathFactory, name: str, before: str, content: str, mode: str
) -> None:
    assume(len(name.encode()) < 200)
    path = tmp_path_factory.mktemp("written") / "new folder" / name
    for text, changes in ((before, 1), (content, int(before != content))):
        first, again = _applied(file.present, path=str(path), content=text, mode=mode, owner=ME, group=MY_GROUP)
        assert len(first) == changes
        assert again == []
        assert path.read_bytes() == text.encode()
    assert [one.name for one in path.parent.iterdir()] == [path.name], "nothing is left beside it"


def test_a_directory_below_one_with_a_group(tmp_path: Path) -> None:
    """A directory in a parent with the setgid bit inherits the bit, and a chmod with four digits does not remove it."""
    parent = tmp_path / "shared"
    parent.mkdir()
    parent.chmod(0o2775)
    first, again = _applied(file.directory, path=str(parent / "data"), mode="0755", owner=ME, group=MY_GROUP)
    assert [change.action for change in first] == ["add"]
    assert again == []


def test_a_file_where_a_link_stands(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("keep\n")
    (tmp_path / "link").symlink_to("target")
    _, again = _applied(file.present, path=str(tmp_path / "link"), content="new\n", owner=ME, group=MY_GROUP)
    assert again == []
    assert (tmp_path / "target").read_text() == "keep\n"


def test_a_file_where_a_directory_stands(tmp_path: Path) -> None:
    """The operation fails before it writes anything; `mv` would move the file into the directory."""
    (tmp_path / "there").mkdir()
    with pytest.raises(HostError, match="directory"):
        _applied(file.present, path=str(tmp_path / "there"), content="new\n", owner=ME, group=MY_GROUP)
    assert list((tmp_path / "there").iterdir()) == []


# --- GRUB's menu


@dataclasses.dataclass(frozen=True)
class Item:
    """An entry of a generated menu, or a submenu with its entries."""

    title: str
    identifier: str
    release: str
    children: tuple[Item, ...] = ()


titles = st.text(
    st.characters(codec="ascii", categories=["L", "N", "P", "Zs"], exclude_characters='>$\\`"'), min_size=1, max_size=25
).filter(lambda title: not title.isdigit() and title == title.strip())
entries = st.builds(
    lambda title, with_id, number: Item(title, f"id-{number}" if with_id else "", f"{number}-generic"),
    titles,
    st.booleans(),
    st.integers(0, 999),
)
submenus = st.builds(
    lambda one, children: dataclasses.replace(
        one, children=tuple(children), identifier=one.identifier and f"sub-{one.identifier}"
    ),
    entries,
    st.lists(entries, min_size=1, max_size=4),
)
menus = st.lists(entries | submenus, min_size=1, max_size=5)

HEADER = """\
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
else
   set default="DEFAULT"
fi
function gfxmode {
	set gfxpayload="${1}"
	if [ "${1}" = "keep" ]; then
		set vt_handoff=vt.handoff=7
	fi
}
"""


def drawn(item: Item, indent: str = "") -> str:
    """Returns an entry in the format that update-grub writes."""
    title = item.title.replace("'", "'\\''")
    identifier = f" $menuentry_id_option '{item.identifier}'" if item.identifier else ""
    if item.children:
        inner = "".join(drawn(child, indent + "\t") for child in item.children)
        return f"{indent}submenu '{title}'{identifier} {{\n{inner}{indent}}}\n"
    return (
        f"{indent}menuentry '{title}' --class ubuntu{identifier} {{\n"
        f"{indent}\tif [ x$feature_platform_search_hint = xy ]; then\n{indent}\t  search --fs-uuid --set=root 1\n{indent}\tfi\n"
        f"{indent}\tlinux\t/boot/vmlinuz-{item.release} root=UUID=1 ro quiet\n"
        f"{indent}\tinitrd\t/boot/initrd.img-{item.release}\n{indent}}}\n"
    )


def _named(menu: list[Item] | tuple[Item, ...], by: str, position: int) -> tuple[str, Item]:
    """Returns a value of GRUB's default (number, title or id of an entry), and the entry that GRUB selects."""
    item = menu[position % len(menu)]
    if by == "number" or (by == "id" and not item.identifier):
        return str(menu.index(item)), item
    word = item.title if by == "title" else item.identifier
    return word, next(one for one in menu if word in (one.title, one.identifier))


@settings(max_examples=150, deadline=None)
@given(
    menus,
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(["number", "title", "id"]),
    st.sampled_from(["set", "saved", "next"]),
)
def test_the_entry_that_boots_next(menu: list[Item], first: int, second: int, by: str, how: str) -> None:
    word, item = _named(menu, by, first)
    if item.children:
        inner, item = _named(item.children, by, second)
        word = f"{word}>{inner}"
    default, environment = {
        "set": (word, {}),
        "saved": ("${saved_entry}", {"saved_entry": word}),
        "next": ("0", {"next_entry": word, "saved_entry": "0"}),
    }[how]
    found = default_entry(HEADER.replace("DEFAULT", default) + "".join(map(drawn, menu)), environment)
    assert (found.title, found.release, found.initrd) == (item.title, item.release, f"/boot/initrd.img-{item.release}")
    assert found.command_line == "root=UUID=1 ro quiet"


@settings(max_examples=60, deadline=None)
@given(menus, st.sampled_from(["", "no such entry", "77", "0>77", "77>0"]))
def test_a_default_that_names_nothing_takes_the_first(menu: list[Item], default: str) -> None:
    text = HEADER.replace("DEFAULT", "${saved_entry}") + "".join(map(drawn, menu))
    first = menu[0].children[0] if menu[0].children else menu[0]
    assert default_entry(text, {"saved_entry": default}).release == first.release


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("menutry 'submenu{}\n\t$linux/boot\"0>"), max_size=200))
def test_a_menu_that_is_no_menu_is_a_value_error(text: str) -> None:
    """The reader of facts converts the ValueError to Unreadable."""
    try:
        default_entry(text, {})
    except ValueError:
        return


parameters = st.from_regex(r"(console|iommu|quiet)(=[a-z0-9,]{1,3})?", fullmatch=True)


@settings(max_examples=150)
@given(st.lists(parameters, max_size=4), st.lists(parameters, max_size=5))
def test_words_appended_to_a_command_line_are_in_force(wanted: list[str], line: list[str]) -> None:
    """The appended words override any words before them, also when two words have the same name."""
    assert grub_facts.missing(wanted, " ".join([*line, *wanted])) == []
    assert set(wanted) - set(line) <= set(grub_facts.missing(wanted, " ".join(line)))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.from_regex(r"[A-Za-z0-9_.:,/=+@%-]{1,12}", fullmatch=True), max_size=4))
def test_the_drop_in_appends(wanted: list[str]) -> None:
    """A shell that reads the drop-in file gets the values of other files followed by the words."""
    text = f'GRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\n{SHIPPED.render("grub/cmdline.cfg.j2", {"kernel_cmdline": wanted})}printf %s "$GRUB_CMDLINE_LINUX_DEFAULT"\n'
    assert run(command("sh", "-c", text)).text.split() == ["quiet", "splash", *wanted]


# --- modprobe.d


@pytest.mark.parametrize(
    ("text", "blocked"),
    [
        ("blacklist nouveau\n", {"nouveau"}),
        ("  blacklist\tnova-core  # keep out\n", {"nova_core"}),
        ("alias nouveau off\n", {"nouveau"}),
        ("install nouveau /bin/false\n", {"nouveau"}),
        ("install nouveau /bin/true\n", {"nouveau"}),
        ("install nouveau /usr/bin/false\n", {"nouveau"}),
        ("#blacklist nouveau\n", set()),
        ("# blacklist nouveau\n", set()),
        ("options nouveau modeset=0\n", set()),
        ("alias char-major-195* nvidia\n", set()),
        ("install nouveau /sbin/modprobe --ignore-install nouveau\n", set()),
        ("blacklist\nalias off\ninstall\n", set()),
        ("", set()),
    ],
)
def test_blocked_modules(text: str, blocked: set[str]) -> None:
    assert kernel.blocked_modules(text) == blocked


@given(st.lists(st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True), max_size=5), st.text(max_size=60))
def test_every_blacklisted_module_is_found_in_any_company(modules: list[str], other: str) -> None:
    text = other + "\n" + "".join(f"blacklist {name}\n{other}\n" for name in modules)
    assert {name.replace("-", "_") for name in modules} <= kernel.blocked_modules(text)


# --- versions and pins

versions = st.builds(
    lambda branch, rest: ".".join([str(branch), *rest]),
    st.integers(400, 699),
    st.lists(st.from_regex(r"[0-9]{2,3}", fullmatch=True), min_size=1, max_size=2),
)
package_names = st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,20}", fullmatch=True)


@given(
    versions,
    st.sampled_from(["", "1:", "2:"]),
    st.sampled_from(["", "-0ubuntu1", "-1~deb12u1", "+really1-2", "~rc1-1"]),
)
def test_upstream_of_any_package_version(version: str, epoch: str, rest: str) -> None:
    assert upstream(f"{epoch}{version}{rest}") == version


@given(versions, versions)
def test_releases_are_ordered_by_number(one: str, other: str) -> None:
    assert (numbers(one) < numbers(other)) == (
        [int(part) for part in one.split(".")] < [int(part) for part in other.split(".")]
    )


def _with_pin(text: str) -> FactStore:
    fact = files.file(pin_path(PIN))
    content = text.encode()
    return FactStore({fact: files.File("file", "0644", "root", "root", hashlib.sha256(content).hexdigest(), content)})


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


# --- the driver from two sources (the facts of both have the same name, so a case cannot distinguish them)

OWN = "http://archive.example/ubuntu jammy-updates/restricted amd64 Packages"
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"


def _offer(source: str, version: str, names: Iterable[str], *, transitional: bool = False) -> str:
    """Returns the output of the script of `apt_archive.offered` for these packages at one version."""
    kind = "(transitional package)" if transitional else "support"
    madison = "".join(f"{name} | {version} | {source}\n" for name in names)
    show = "".join(f"Package: {name}\nVersion: {version}\nDescription: NVIDIA {kind}\n\n" for name in names)
    return f"--key\nKEY\n--madison\n{madison}--show\n{show}"


SERVER = ("nvidia-headless-535-server", "nvidia-utils-535-server")
DESKTOP = ("nvidia-headless-535", "nvidia-utils-535")
ONLY_TRANSITIONAL = _offer(OWN, "535.309.01-0ubuntu0.22.04.2", SERVER, transitional=True)


class TwoSources:
    """A host with one answer for the distribution's archive and one for NVIDIA's repository."""

    def __init__(self, distribution: str, nvidia: str, simulated: str = "rc=0\n", pin: str | None = None) -> None:
        self.distribution, self.nvidia, self.simulated, self.pin = distribution, nvidia, simulated, pin
        self.asked: list[str] = []
        self.rounds = 0
        self.notes: list[str] = []

    def answer(self, fact: Fact[Any]) -> Result:
        """Returns the host's output for a fact."""
        name, remote = fact.name, NVIDIA in fact.command.argv
        self.asked.append(f"{name.partition('(')[0]}{' of NVIDIA' if remote else ''}")
        if name == "apt_sources.sources":
            return Result(0, b"")
        if name in ("pci.gpus", "pci.nvswitches"):
            return Result(0, b"0000:06:00.0 0x030200 1db1\n")
        if name == "system.os_release":
            return Result(0, b"ID=ubuntu\nVERSION_ID=22.04\n")
        if name.startswith("apt_archive.offered"):
            return Result(0, (self.nvidia if remote else self.distribution).encode())
        if name.startswith("apt_archive.simulated"):
            return Result(0, self.simulated.encode())
        return Result(0, b"absent\n")

    def ask(self, function: Callable[..., Any], *args: Any, **parameters: Any) -> Any:
        """Calls the function, reads the facts that it needs, and returns its result."""
        store = FactStore()
        for self.rounds in range(9):
            try:
                found = function(store, *args, **parameters)
                return list(found) if inspect.isgenerator(found) else found
            except Missing as wanted:
                store.learn((fact, self.answer(fact)) for fact in wanted.facts)
        raise AssertionError("facts that never settle")


def test_transitional_in_the_distribution_so_from_nvidia() -> None:
    moves = "".join(
        f"Inst {name} (535.183.01-0ubuntu1 NVIDIA:cuda [amd64])\n" for name in (*DESKTOP, "libnvidia-compute-535")
    )
    host = TwoSources(
        ONLY_TRANSITIONAL, _offer(f"{NVIDIA}  Packages", "535.183.01-0ubuntu1", DESKTOP), f"{moves}rc=0\n"
    )
    found = host.ask(resolved, Driver("535"), None)
    assert (found.version, found.source) == ("535.183.01", "cuda")
    assert found.reason == "the distribution's nvidia-headless-535-server is only transitional"
    assert found.closure == dict.fromkeys((*DESKTOP, "libnvidia-compute-535"), "535.183.01-0ubuntu1")
    assert "apt_archive.simulated of NVIDIA" in host.asked


def test_not_in_the_distribution_so_from_nvidia() -> None:
    moves = "".join(f"Inst {name} (535.183.01-0ubuntu1 NVIDIA:cuda [amd64])\n" for name in DESKTOP)
    host = TwoSources(
        "--key\n--madison\n--show\n", _offer(f"{NVIDIA}  Packages", "535.183.01-0ubuntu1", DESKTOP), f"{moves}rc=0\n"
    )
    found = host.ask(resolved, Driver("535"), None)
    assert (found.source, found.reason) == ("cuda", "the distribution's archive does not have it")


def test_only_nvidia_is_asked_when_the_inventory_says_so() -> None:
    """The stated reason is the inventory, because the distribution's archive is not queried."""
    moves = "".join(f"Inst {name} (535.183.01-0ubuntu1 NVIDIA:cuda [amd64])\n" for name in DESKTOP)
    host = TwoSources(
        _offer(OWN, "535.171.04-0ubuntu1", DESKTOP),
        _offer(f"{NVIDIA}  Packages", "535.183.01-0ubuntu1", DESKTOP),
        f"{moves}rc=0\n",
    )
    found = host.ask(resolved, Driver("535", source="cuda"), None)
    assert (found.version, found.source) == ("535.183.01", "cuda")
    assert "apt_archive.offered" not in host.asked
    assert "distribution's archive does not have it" not in found.reason


def test_nvidia_is_not_asked_when_the_distribution_has_it() -> None:
    moves = "".join(f"Inst {name} (535.171.04-0ubuntu1 Ubuntu [amd64])\n" for name in DESKTOP)
    host = TwoSources(_offer(OWN, "535.171.04-0ubuntu1", DESKTOP), "unused", f"{moves}rc=0\n")
    found = host.ask(resolved, Driver("535"), None)
    assert (found.version, found.source) == ("535.171.04", "distribution")
    assert not [name for name in host.asked if "NVIDIA" in name]


def test_a_version_that_only_nvidia_has() -> None:
    moves = "".join(f"Inst {name} (535.183.01-0ubuntu1 NVIDIA:cuda [amd64])\n" for name in DESKTOP)
    nvidia = _offer(f"{NVIDIA}  Packages", "535.183.01-0ubuntu1", DESKTOP)
    host = TwoSources(_offer(OWN, "535.171.04-0ubuntu1", DESKTOP), nvidia, f"{moves}rc=0\n")
    found = host.ask(resolved, Driver("535", "535.183.01"), None)
    assert (found.version, found.source) == ("535.183.01", "cuda")


def test_a_version_that_was_never_a_release_names_its_neighbours() -> None:
    host = TwoSources(ONLY_TRANSITIONAL, _offer(f"{NVIDIA}  Packages", "535.183.01-0ubuntu1", DESKTOP))
    with pytest.raises(HostError) as caught:
        host.ask(resolved, Driver("535", "535.172.04"), None)
    assert caught.value.found == "535.172.04 was never a release"
    assert (
        caught.value.expected
        == "a release, such as 535.171.04 or 535.179; the sources have 535.183.01 (cuda); asked were distribution and cuda"
    )


def _names(offer: str) -> str:
    return offer.partition("--madison\n")[2].partition("--show\n")[0]


def test_half_a_family_is_no_driver() -> None:
    """The two packages of the server family have different versions, so the family does not count as a driver."""
    halves = _names(_offer(OWN, "535.171.04-0ubuntu1", SERVER[:1])) + _names(
        _offer(OWN, "535.161.08-0ubuntu1", SERVER[1:])
    )
    host = TwoSources(f"--key\n--madison\n{halves}--show\n", "--key\n--madison\n--show\n")
    with pytest.raises(HostError, match="no source has branch 535"):
        host.ask(resolved, Driver("535"), None)


def test_a_family_of_two_sources_is_no_driver() -> None:
    """NVIDIA's headless package and the distribution's utilities have different releases."""
    halves = _names(_offer(f"{NVIDIA}  Packages", "535.183.01-0ubuntu1", DESKTOP[:1])) + _names(
        _offer(OWN, "535.171.04-0ubuntu1", DESKTOP[1:])
    )
    host = TwoSources("--key\n--madison\n--show\n", f"--key\n--madison\n{halves}--show\n")
    with pytest.raises(HostError, match="no source has branch 535"):
        host.ask(resolved, Driver("535"), None)


def test_a_branch_that_nobody_has() -> None:
    host = TwoSources("--key\n--madison\n--show\n", "--key\n--madison\n--show\n")
    with pytest.raises(HostError) as caught:
        host.ask(resolved, Driver("499"), None)
    assert str(caught.value) == (
        "driver.branch: no source has branch 499, and the catalogue knows no branch 499\n"
        "  expected: the sources have no real driver 499; asked were distribution and cuda\n"
        "  fix:      another branch, such as 495 or 510: invoke explain 495 shows what it supports"
    )


def test_what_the_host_itself_adds_of_nvidia_is_not_taken_from_the_mirror() -> None:
    """When NVIDIA's sources are queried, a version that only the distribution has is not reported as `from cuda`."""
    nvidia = _offer(OWN, "535.171.04-0ubuntu1", DESKTOP)
    host = TwoSources("--key\n--madison\n--show\n", nvidia)
    with pytest.raises(HostError, match="no source has branch 535"):
        host.ask(resolved, Driver("535"), None)


def test_nvidia_s_repository_is_added_for_a_driver_from_it() -> None:
    moves = "".join(f"Inst {name} (535.183.01-0ubuntu1 NVIDIA:cuda [amd64])\n" for name in DESKTOP)
    host = TwoSources(
        ONLY_TRANSITIONAL, _offer(f"{NVIDIA}  Packages", "535.183.01-0ubuntu1", DESKTOP), f"{moves}rc=0\n"
    )
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
    repository = apt_archive.Repository(NVIDIA, f"{NVIDIA}/key", "")
    assert apt_archive.offered(("a",)) != apt_archive.offered(("a",), repository)
    assert apt_archive.offered(("a",)).name != apt_archive.offered(("a",), repository).name
    assert apt_archive.simulated(("a=1",), "").name != apt_archive.simulated(("a=1",), "", repository).name


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (f"BADSIG {NVIDIA}", f"{NVIDIA} has no valid signature by the key FF of {NVIDIA}/key"),
        ("BADKEY AA BB", f"the key file {NVIDIA}/key holds AA and BB, not the expected key FF"),
        ("W: x\nE: The repository is not signed.", "apt cannot read its sources: E: The repository is not signed."),
        ("", "apt cannot read its sources: no message"),
    ],
)
def test_why_a_repository_cannot_be_read(error: str, why: str) -> None:
    fact = apt_archive.offered(("a",), apt_archive.Repository(NVIDIA, f"{NVIDIA}/key", "FF"))
    found = parsed(fact, Result(1, b"", error.encode()))
    assert isinstance(found, Unreadable)
    assert str(found) == why


def test_a_mirror_of_nvidia_s_repository() -> None:
    mirror = "https://mirror.example/cuda"
    host = TwoSources(ONLY_TRANSITIONAL, "unused")
    with pytest.raises(HostError):
        host.ask(resolved, Driver("535"), CudaSource(f"{mirror}/", fingerprint="AB" * 20))
    fact = apt_archive.offered(("a",), apt_archive.Repository(mirror, f"{mirror}/3bf863cc.pub", "AB" * 20))
    assert fact.command.argv[4:7] == (mirror, f"{mirror}/3bf863cc.pub", "AB" * 20)


# --- the unit that sets the limits at boot


class Unit:
    """A host with the files and units that `limits.boot` reads and changes. Each command advances its clock."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str, int]] = {}
        self.enabled: dict[str, str] = {}
        self.active: dict[str, str] = {}
        self.started: dict[str, int] = {}
        self.needs_reload = False
        self.gpus = self.listed = 4
        self.clock = 0
        self.rounds = 0

    def answer(self, fact: Fact[Any]) -> Any:
        """Returns the value of the fact."""
        path = fact.name.partition("(")[2][:-1]
        if fact.name.startswith("files.file("):
            if path not in self.files:
                return None
            content, mode, _ = self.files[path]
            return files.File("file", mode, "root", "root", hashlib.sha256(content).hexdigest(), content)
        if fact.name == "gpu.containers":
            return ()
        if fact.name == "pci.gpus":
            return tuple(pci.PciGpu(f"0000:0{number}:00.0", "1db1", "nvidia") for number in range(self.gpus))
        if fact.name == "kernel_log.kernel":
            return ("NVRM: GPU 0000:03:00.0: RmInitAdapter failed! (0x31:0xffff:967)",)
        load = "loaded" if f"/etc/systemd/system/{path}" in self.files else "not-found"
        text = (
            f"LoadState={load}\nActiveState={self.active.get(path, 'inactive')}\nSubState=x\n"
            f"UnitFileState={self.enabled.get(path, '')}\nNeedDaemonReload={'yes' if self.needs_reload else 'no'}\n"
            f"ActiveEnterTimestampMonotonic={self.started.get(path, 0) * 1_000_000}\nnow={self.clock}\nup={self.clock}\n"
        )
        times = [f"ctime {self.files[word][2]} {word}\n" for word in fact.command.argv if word in self.files]
        return parsed(fact, Result(0, (text + "".join(times)).encode()))

    def run(self, cmd: Command) -> None:
        """Applies the effect of the command to the host."""
        self.clock += 1
        if cmd.argv[:2] == ("sh", "-c"):
            path, mode, owner, group = cmd.argv[4:]
            assert (owner, group) == ("root", "root")
            self.files[path] = (cmd.stdin, mode, self.clock)
            if path.startswith("/etc/systemd"):
                self.enabled.setdefault(path.rpartition("/")[2], "disabled")
                self.needs_reload = True
            return
        verb, unit = cmd.argv[1], cmd.argv[-1]
        assert cmd.argv[0] == "systemctl"
        if verb == "daemon-reload":
            self.needs_reload = False
        elif verb == "enable":
            self.enabled[unit] = "enabled"
        elif verb in ("start", "restart"):
            assert not self.needs_reload
            self.active[unit], self.started[unit] = "active", self.clock

    def works(self) -> bool:
        """Returns whether unit and timer are active and enabled, the watch is not started, and systemd is reloaded."""
        units = ("gpu-limits.service", "gpu-limits.timer")
        right = all((self.enabled.get(unit), self.active.get(unit)) == ("enabled", "active") for unit in units)
        return right and "gpu-limits-watch.service" not in self.active and not self.needs_reload

    def wants(self, wanted: Limits) -> list[Change]:
        """Returns the changes that `limits.boot` still makes. The GPUs are known: `limits.applied` asks for them in the
        same round."""
        store = FactStore()
        rows = (f"{n}, U{n}, 0000:0{n}:00.0, V100, Enabled, 200, 150, 300, 300, 1, 1, 1, 1" for n in range(self.listed))
        smi = nvidia_smi.xml("gpu.gpus", "\n".join(rows)) or "<nvidia_smi_log></nvidia_smi_log>"
        store.known[gpu.gpus] = parsed(gpu.gpus, Result(0, smi.encode()))
        for self.rounds in range(9):
            try:
                yielded = list(limits.boot(store, limits=wanted, expected_gpus=4))
                self.notes = [one.text for one in yielded if isinstance(one, Note)]
                return [one for one in yielded if isinstance(one, Change)]
            except Missing as missing:
                store.known.update((fact, self.answer(fact)) for fact in missing.facts)
        raise AssertionError("facts that never settle")

    def becomes(self, wanted: Limits) -> None:
        """Applies all changes that `limits.boot` makes."""
        for change in self.wants(wanted):
            for cmd in change.commands:
                self.run(cmd)


WANTED = Limits(True, 200, Clocks(877, 1005))


def test_the_boot_unit_from_nothing() -> None:
    host = Unit()
    changes = host.wants(WANTED)
    assert [(change.action, change.subject) for change in changes] == [
        ("add", "/usr/local/lib/rigwright/gpu_limits.py"),
        ("add", "/usr/local/lib/rigwright/pynvml.py"),
        ("add", "/etc/rigwright/limits.json"),
        ("add", "/etc/systemd/system/gpu-limits.service"),
        ("add", "/etc/systemd/system/gpu-limits-watch.service"),
        ("add", "/etc/systemd/system/gpu-limits.timer"),
        ("change", "gpu-limits.service"),
        ("change", "gpu-limits.timer"),
        ("run", "gpu-limits.service"),
        ("run", "gpu-limits.timer"),
    ]
    host.becomes(WANTED)
    assert host.wants(WANTED) == []
    assert host.works()
    config = json.loads(host.files["/etc/rigwright/limits.json"][0])
    assert config == {
        "expected_gpus": 4,
        "gpus": [
            {
                "match": {},
                "persistence": True,
                "power_limit_w": 200,
                "application_clocks": {"memory_mhz": 877, "graphics_mhz": 1005},
            }
        ],
    }
    unit = host.files["/etc/systemd/system/gpu-limits.service"][0].decode()
    assert "gpu_limits.py apply --config /etc/rigwright/limits.json" in unit


def test_the_boot_unit_asks_for_everything_at_once() -> None:
    """The operation requests all its facts in one round."""
    host = Unit()
    host.wants(WANTED)
    assert host.rounds == 1


@pytest.mark.parametrize("after", range(12))
def test_the_boot_unit_heals_after_a_run_that_died(after: int) -> None:
    """If the controller dies after any command, the next run completes the work."""
    host = Unit()
    commands = [cmd for change in host.wants(WANTED) for cmd in change.commands]
    for cmd in commands[:after]:
        host.run(cmd)
    host.becomes(WANTED)
    assert host.wants(WANTED) == []
    assert host.works()


def test_the_boot_unit_cannot_succeed_without_all_gpus() -> None:
    """The unit is installed and not started; a failed unit stays failed until all GPUs are present."""
    host = Unit()
    host.gpus = 3
    host.becomes(WANTED)
    assert host.wants(WANTED) == []
    assert host.enabled["gpu-limits.service"] == "enabled"
    assert "gpu-limits.service" not in host.active
    assert host.active["gpu-limits.timer"] == "active"
    host.active["gpu-limits.service"] = "failed"
    assert host.wants(WANTED) == []
    host.gpus = 4
    assert [change.subject for change in host.wants(WANTED)] == ["gpu-limits.service"]


def test_the_boot_unit_is_not_started_while_the_driver_lacks_a_gpu() -> None:
    """It would wait two minutes for the GPU and fail; the note has the driver's own sentence."""
    host = Unit()
    host.listed = 3
    host.becomes(WANTED)
    assert host.wants(WANTED) == []
    assert "gpu-limits.service" not in host.active
    assert host.notes == [
        "gpu-limits.service fails at every boot until all 4 GPUs answer; 0000:03:00.0 does not answer the driver, which could not start "
        "it: RmInitAdapter failed! (0x31:0xffff:967)"
    ]
    host.listed = 4
    assert [change.subject for change in host.wants(WANTED)] == ["gpu-limits.service"]
    assert host.notes == []


def test_the_boot_unit_runs_again_with_other_limits() -> None:
    host = Unit()
    host.becomes(WANTED)
    host.becomes(Limits(True, 250, None))
    changes = host.wants(WANTED)
    assert [change.subject for change in changes] == ["/etc/rigwright/limits.json", "gpu-limits.service"]
    assert changes[1].commands[0].argv == ("systemctl", "restart", "gpu-limits.service")
    host.run(changes[0].commands[0])
    (left,) = host.wants(WANTED)
    assert left.commands[0].argv[1] == "restart", "also when a run died between the file and the restart"


def test_the_boot_unit_that_failed_is_started_again() -> None:
    host = Unit()
    host.becomes(WANTED)
    host.active["gpu-limits.service"] = "failed"
    (change,) = host.wants(WANTED)
    assert [cmd.argv[1] for cmd in change.commands] == ["reset-failed", "start"]


# --- ranges and YAML


@given(st.integers(0, 200), st.integers(0, 60), st.integers(1, 7), st.integers(1, 4), st.text("abc.-", max_size=5))
def test_a_range_of_numbers(first: int, more: int, step: int, width: int, around: str) -> None:
    low = str(first).zfill(width)
    high = str(first + more).zfill(width)
    text = f"{around}[{low}:{high}:{step}]{around}x"
    if low[0] == "0" and len(low) > 1 and len(high) != len(low):  # in 01 to 100 it is unclear whether 001 is meant
        with pytest.raises(ValueError, match="names no host"):
            host_ranges.expand(text)
        return
    names = host_ranges.expand(text)
    assert len(names) == len(set(names)) == more // step + 1
    assert names[0] == f"{around}{low}{around}x"
    inner = [name[len(around) : len(name) - len(around) - 1] for name in names]
    assert [int(word) for word in inner] == list(range(first, first + more + 1, step))
    assert all(len(word) >= len(low) for word in inner)


@given(st.characters(codec="ascii", categories=["Ll"]), st.characters(codec="ascii", categories=["Ll"]))
def test_a_range_of_letters(one: str, other: str) -> None:
    first, last = sorted([one, other])
    names = host_ranges.expand(f"gpu-[{first}:{last}]")
    assert names == [f"gpu-{chr(code)}" for code in range(ord(first), ord(last) + 1)]


@given(st.text(st.characters(codec="utf-8", exclude_characters="[]"), max_size=20))
def test_a_plain_name_is_itself(name: str) -> None:
    assert host_ranges.expand(name) == [name]


def test_two_ranges() -> None:
    assert host_ranges.expand("r[1:2]n[a:b]") == ["r1na", "r1nb", "r2na", "r2nb"]


FLEET = inventory.Inventory(
    Path("hosts.yml"),
    {
        name: inventory.Host(name, groups, {})
        for name, groups in {
            "v1": ("all", "gpu", "v100"),
            "v2": ("all", "gpu", "v100", "old"),
            "r1": ("all", "gpu", "rtx"),
            "c1": ("all", "ungrouped"),
        }.items()
    },
    {
        "all": ("v1", "v2", "r1", "c1"),
        "gpu": ("v1", "v2", "r1"),
        "v100": ("v1", "v2"),
        "rtx": ("r1",),
        "old": ("v2",),
        "empty": (),
    },
)
parts = st.sampled_from(["all", "gpu", "v100", "rtx", "old", "v1", "v2", "r1", "c1", "v*", "*1", "~[vr]1"])


def _set(pattern: str) -> set[str]:
    try:
        return {host.name for host in FLEET.select(pattern)}
    except UsageError as error:
        return set() if error.found == "matches no host" else {str(error)}


@given(parts, parts, parts, st.sampled_from(":,"))
def test_patterns_are_sets(one: str, other: str, third: str, comma: str) -> None:
    assert _set(f"{one}{comma}{other}") == _set(one) | _set(other)
    assert _set(f"{one}{comma}&{other}") == _set(one) & _set(other)
    assert _set(f"{one}{comma}!{other}") == _set(one) - _set(other)
    assert _set(f"!{other}{comma}{one}") == _set(one) - _set(other)
    assert _set(f"{one}{comma}{other}{comma}!{third}") == (_set(one) | _set(other)) - _set(third)
    assert _set(f"!{one}") == _set("all") - _set(one)


def _refusal(text: str) -> InputError | None:
    try:
        loads(text, "x.yml")
    except InputError as error:
        return error
    return None


@settings(max_examples=300)
@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%@`, \n\t012~?<=."), max_size=40))
def test_any_text_is_a_document_or_an_input_error(text: str) -> None:
    error = _refusal(text)
    assert error is None or error.where.startswith("x.yml")


@pytest.mark.parametrize(
    "text",
    [
        "a: 2024-13-01",
        "a: 2024-02-30 10:00:00",
        "a: 0b_",
        "a: !!int x",
        "a: !!float x",
        "a: !!bool x",
        "a: !!timestamp x",
        "a: &a [*a]",
        "a: &a {b: *a}",
    ],
)
def test_a_value_that_its_own_form_refuses_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(f"# first line\n{text}\n", "x.yml")
    assert caught.value.where == "x.yml:2"


# --- the reader of facts


@given(st.sampled_from([124, 137, -1]), st.binary(max_size=20))
def test_too_late_is_unreadable_whatever_came(code: int, stdout: bytes) -> None:
    fact = Fact("x", command("x", timeout_s=7), lambda result: result.text)
    assert str(parsed(fact, Result(code, stdout))) == "x: no answer within 7 s"


@example(b"\0\r\0", b"", 0)
@given(st.binary(max_size=200), st.binary(max_size=60), st.sampled_from([0, 1, 2, 9, 15, 127, 255]))
def test_no_output_breaks_a_reader(stdout: bytes, stderr: bytes, code: int) -> None:
    """Every fact converts any output to a value, Unavailable or Unreadable, and raises no other exception."""
    for fact in _every_fact():
        try:
            parsed(fact, Result(code, stdout, stderr))
        except (Unavailable, Unreadable):
            raise AssertionError("returned, not raised") from None


def _every_fact() -> list[Fact[Any]]:
    simple = [thing for thing in test_cases.facts_by_name().values() if isinstance(thing, Fact)]
    return simple + [_made(one.values[0], "x") for one in _fact_makers()]


def test_an_apt_job_takes_its_packages_as_words() -> None:
    job = apt.install(["a=1", "$(reboot)"])
    assert job.argv[-2:] == ("a=1", "$(reboot)")
    assert job.long

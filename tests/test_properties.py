"""Properties that hold for every input: quoting, facts with unusual names, files, GRUB menus, ranges, YAML."""

from __future__ import annotations

import dataclasses
import grp
import hashlib
import inspect
import os
import pwd
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from rigwright.core import command as core_command, host_ranges
from rigwright.core.change import Change
from rigwright.core.command import Command, Result, command, script
from rigwright.core.errors import HostError, InputError
from rigwright.core.secrets import Secret
from rigwright.core.templates.host_files import SHIPPED
from rigwright.core.yaml_source import loads
from rigwright.facts import Fact, FactStore, Missing, files, grub as grub_facts, kernel, parsed
from rigwright.facts.grub import default_entry
from rigwright.facts.plain import plain
from rigwright.operations import apt, file
from tests import test_cases

ME = pwd.getpwuid(os.getuid()).pw_name
MY_GROUP = grp.getgrgid(os.getgid()).gr_name
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
hostile = words | st.sampled_from(
    ["", "-rf", "--", "a b", "'", '"', "$(reboot)", "`x`", "\n", "a\nb", "*", "~", "\\", "é"]
)


STATE = tempfile.TemporaryDirectory(prefix="rigwright-")
"""The directory in place of /var/lib/rigwright of this machine."""


def run(cmd: Command) -> Result:
    """Runs the command on this machine with STATE."""
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


def _made(function: Callable[..., Fact[Any]], word: str) -> Fact[Any]:
    """Makes the fact with `word` as the value of every text argument, and 7 as every number."""
    hints = get_type_hints(function)
    values: dict[object, Any] = {str: word, int: 7}
    parameters = inspect.signature(function).parameters.items()
    needed = [name for name, parameter in parameters if hints[name] in values or parameter.default is parameter.empty]
    return function(*(values.get(hints[name], (word,)) for name in needed))


def _takes_text(function: Callable[..., Fact[Any]]) -> bool:
    return any(hint is not int for name, hint in get_type_hints(function).items() if name != "return")


FACTS = test_cases.facts_by_name()
MAKERS = [
    pytest.param(thing, id=name) for name, thing in FACTS.items() if not isinstance(thing, Fact) and _takes_text(thing)
]
"""The functions that make a fact from a text."""


HOSTILE = "--x' \"$(reboot)`y`;\n&z"


@pytest.mark.parametrize("function", MAKERS)
def test_no_argument_of_a_fact_is_read_by_a_shell_or_as_an_option(function: Callable[..., Fact[Any]]) -> None:
    """An argument that begins with a dash comes after `--`; a script receives it as `$1` and quotes it there."""
    argv = _made(function, HOSTILE).command.argv
    assert HOSTILE in argv, "the argument is a word of its own"
    assert not [word for word in argv if "reboot" in word and word != HOSTILE], "and part of no other word"
    if argv[:2] == ("sh", "-c"):
        assert HOSTILE not in argv[2:4]
        text = re.sub(r"'[^']*'", "", argv[2])
        assert not re.findall(r"(?<![\"/=])\$[1-9@]", text), "unquoted $1"
    else:
        assert argv.index("--") < len(argv) - 1 - argv[::-1].index(HOSTILE)


@pytest.mark.parametrize("function", MAKERS)
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
        f"{indent}\tif [ x$feature_platform_search_hint = xy ]; then\n{indent}\t  search --fs-uuid --set=root 1\n"
        f"{indent}\tfi\n"
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
    text = (
        'GRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\n'
        f'{SHIPPED.render("grub/cmdline.cfg.j2", {"kernel_cmdline": wanted})}printf %s "$GRUB_CMDLINE_LINUX_DEFAULT"\n'
    )
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


@settings(max_examples=300)
@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%@`, \n\t012~?<=."), max_size=40))
def test_any_text_is_a_document_or_an_input_error(text: str) -> None:
    where = "x.yml"
    try:
        loads(text, "x.yml")
    except InputError as error:
        where = error.where
    assert where.startswith("x.yml")


@pytest.mark.parametrize(
    "text",
    [
        "2024-13-01",
        "2024-02-30 10:00:00",
        "0b_",
        "!!int x",
        "!!float x",
        "!!bool x",
        "!!timestamp x",
        "&a [*a]",
        "&a {b: *a}",
    ],
)
def test_a_value_that_its_own_form_refuses_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(f"# first line\na: {text}\n", "x.yml")
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
    for fact in EVERY_FACT:
        parsed(fact, Result(code, stdout, stderr))


EVERY_FACT = [thing for thing in FACTS.values() if isinstance(thing, Fact)]
EVERY_FACT += [_made(maker.values[0], "x") for maker in MAKERS]  # type: ignore[arg-type]


def test_an_apt_job_takes_its_packages_as_words() -> None:
    job = apt.install(["a=1", "$(reboot)"])
    assert job.argv[-2:] == ("a=1", "$(reboot)")
    assert job.long

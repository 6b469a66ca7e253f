"""Commands of a batch that ask one program are one process, and each has the answer that it gets alone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import structs

from rigwright.core.command import Command, Result, command, script
from rigwright.facts import Fact, files, merging, parsed, systemd
from rigwright.facts.apt import dpkg
from rigwright.inventory.model import Host
from rigwright.ssh.transport import Transport
from tests.machine_speed import within


class Shell(Transport):
    """This machine's sh, with all scripts that it was given."""

    def __init__(self) -> None:
        super().__init__(Host("host", (), {}))
        self.scripts: list[str] = []

    def _exchange(self, script: bytes, nonce: str, limit_s: float) -> bytes:  # noqa: ARG002
        self.scripts.append(script.decode())
        return subprocess.run(["sh"], input=script, capture_output=True, timeout=limit_s, check=True).stdout


def alone(cmd: Command, environment: Mapping[str, str] | None = None) -> Result:
    """The answer of a command by itself."""
    env = {**os.environ, "LC_ALL": "C", **(environment or {})}
    done = subprocess.run(cmd.argv, capture_output=True, stdin=subprocess.DEVNULL, check=False, env=env)
    return Result(done.returncode, done.stdout, done.stderr)


def asked(shell: Shell, facts: Sequence[Fact[Any]]) -> tuple[list[Any], list[Any]]:
    """The values of facts that are read together, and of each alone."""
    answers = shell.run([fact.command for fact in facts], together=True)
    together = [parsed(fact, answer) for fact, answer in zip(facts, answers, strict=True)]
    return together, [parsed(fact, alone(fact.command)) for fact in facts]


def test_files_of_every_kind(tmp_path: Path) -> None:
    contents = {
        "text": b"a = 1\n", "empty": b"", "no newline": b"x", "binary": bytes(range(256)) * 4,
        "frames": b"\ndata\nhere\nabsent\n",
        "just small": b"s" * 65536, "large": b"l" * 65537, "larger": os.urandom(200_000),
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("text")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "two\nlines").write_bytes(b"2")
    (tmp_path / "-n").write_bytes(b"option")
    os.mkfifo(tmp_path / "pipe")
    names = [*contents, "folder", "link", "dangling", "two\nlines", "pipe", "nothing", "-n", "also nothing"]
    facts = [files.file(str(tmp_path / name)) for name in names]
    shell = Shell()
    together, single = asked(shell, facts)
    assert together == single
    assert sum(file is not None and file.sha256 != "" for file in together) == 10
    assert shell.round_trips == 1
    assert shell.scripts[0].count("stat -c") == 2, "one for files, one of the batch itself"


def test_files_that_are_all_absent(tmp_path: Path) -> None:
    together, _ = asked(Shell(), [files.file(str(tmp_path / name)) for name in ("a", "b", "c")])
    assert together == [None] * 3


@pytest.mark.parametrize("content", [b"short", b"a long one in its place"], ids=["shorter", "longer"])
def test_a_file_that_changes_meanwhile_is_asked_for_alone(tmp_path: Path, content: bytes) -> None:
    facts = [files.file(str(tmp_path / name)) for name in ("a", "b")]
    for name in "ab":
        (tmp_path / name).write_bytes(b"0123456789")

    class Changing(Shell):
        def _exchange(self, script: bytes, nonce: str, limit_s: float) -> bytes:
            cat = b'exec cat -- "$@"'
            changed = b'printf %%s "%s" >"%s"; ' % (content, bytes(tmp_path / "a"))
            return super()._exchange(script.replace(cat, changed + cat) if not self.scripts else script, nonce, limit_s)

    shell = Changing()
    together, _ = asked(shell, facts)
    assert [file.content for file in together] == [content, b"0123456789"]
    assert shell.round_trips == 2


def test_packages_by_name_and_pattern() -> None:
    facts: list[Fact[Any]] = [
        dpkg.packages("bash", "dpkg"),
        dpkg.packages("coreutils", "no-such-package"),
        dpkg.matching("lib*1", "no-such-*"),
        dpkg.packages("no-such-package-either"),
        dpkg.matching("bas?", "*"),
    ]
    shell = Shell()
    together, single = asked(shell, facts)
    assert together == single
    answers = shell.run([fact.command for fact in facts], together=True)
    assert [answer.code for answer in answers] == [alone(fact.command).code for fact in facts] == [0, 1, 1, 1, 0]
    assert "no packages found matching no-such-package-either" in answers[3].error_text
    assert shell.scripts[0].count("dpkg-query") == 1


def test_a_pattern_that_dpkg_reads_otherwise_is_asked_for_alone() -> None:
    facts = [dpkg.matching("ba[sx]h"), dpkg.packages("dpkg"), dpkg.packages("bash:amd64")]
    shell = Shell()
    together, single = asked(shell, facts)
    assert together == single
    assert shell.round_trips == 2


def test_units() -> None:
    facts = [systemd.unit(name) for name in ("a.service", "gone.service", "c.timer")]
    blocks = [
        f"LoadState={load}\nActiveState=x\nSubState=\nUnitFileState=\nNeedDaemonReload=no\n"
        for load in ("loaded", "not-found", "masked")
    ]
    commands = tuple(fact.command for fact in facts)
    [one] = merging.merged(commands)
    assert one.command.argv == (*commands[0].argv[:4], "a.service gone.service c.timer")
    clock = "now=2.5\nup=1.5\n"
    answers = one.answers(Result(0, "\n".join([*blocks, clock]).encode()), commands)
    assert answers == [Result(0, f"{block}\n{clock}".encode()) for block in blocks]
    short = "\n".join([*blocks[:2], clock]).encode()
    for bad in (Result(1, b"Failed to connect to bus"), Result(0, short), Result(0, b""), Result(124, b"")):
        assert one.answers(bad, commands) == [None] * 3


ODD = [
    b"0, " + b"x" * 200_000 + b"\n",
    b"\n" * (4 << 20),
    b"[" * 100_000,
    b"here\nhere\nregular|6|\xff\n",
    b"LoadState=\xff\n\n",
]
KINDS: list[tuple[Command, ...]] = [
    tuple(files.file(name).command for name in ("/a", "/b")),
    tuple(systemd.unit(name).command for name in ("a.service", "b.service")),
    tuple(dpkg.packages(name).command for name in ("a", "b")),
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.one_of(st.binary(max_size=200), st.sampled_from(ODD)),
    st.sampled_from([0, 1, 9, 14, 127]),
    st.integers(0, 3000),
    st.binary(max_size=4),
)
def test_no_answer_of_a_host_raises(commands: tuple[Command, ...], text: bytes, code: int, at: int, put: bytes) -> None:
    [one] = merging.merged(commands)
    for stdout in (text, text[:at] + put + text[at:], text[:at]):
        assert len(one.answers(Result(code, stdout), commands)) == len(commands)


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("commands", KINDS, ids=["files", "units", "packages"])
def test_no_odd_answer_raises(commands: tuple[Command, ...], text: bytes) -> None:
    [one] = merging.merged(commands)
    began = time.process_time()
    assert len(one.answers(Result(0, text), commands)) == len(commands)
    assert within(time.process_time() - began, 2)


def test_units_and_their_files(tmp_path: Path) -> None:
    """Over a systemctl of its own: this machine's processes may run without systemd."""
    (tmp_path / "systemctl").write_text(SYSTEMCTL_RUNNING)
    (tmp_path / "systemctl").chmod(0o755)
    paths = [tmp_path / name for name in ("one", "two", "absent")]
    for path in paths[:2]:
        path.write_text("x")
    asked = [("a.service", paths[:2]), ("b.timer", [paths[1], paths[2]]), ("c.service", [])]
    facts: list[Fact[Any]] = [systemd.running(name, tuple(map(str, of))) for name, of in asked]
    facts.append(systemd.unit("d.timer"))
    commands = tuple(fact.command for fact in facts)
    (one,) = merging.merged(commands)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    split = one.answers(alone(one.command, environment), commands)
    together = [parsed(fact, answer) for fact, answer in zip(facts, split, strict=True)]
    single = [parsed(fact, alone(fact.command, environment)) for fact in facts]
    assert together[3] == single[3] == systemd.Unit("loaded", "inactive", "dead", "enabled", False)
    for found, expected in zip(together[:3], single[:3], strict=True):
        assert abs(found.started_s - expected.started_s) < 5
        assert structs.replace(found, started_s=0.0) == structs.replace(expected, started_s=0.0)
    assert [found.active for found in together[:3]] == [True, False, True]
    assert [found.newest_file_s > 0 for found in together[:3]] == [True, True, False]
    assert one.answers(Result(0, b"ActiveState=active\n\nnow=1\nup=1\n"), commands) == [None] * 4


SYSTEMCTL_RUNNING = """#!/bin/sh
shift 4  # show -p PROPERTIES --
for unit; do
  case $unit in *.timer) state=inactive; pid=0;; *) state=active; pid=1;; esac
  [ -z "$more" ] || echo
  printf 'LoadState=loaded\\nSubState=dead\\nUnitFileState=enabled\\nActiveState=%s\\n'\\
'NeedDaemonReload=no\\nMainPID=%s\\nActiveEnterTimestampMonotonic=5000000\\n' $state $pid
  more=y
done
"""


def test_what_is_not_alike_is_not_merged() -> None:
    commands = [
        command("dpkg-query", "-W", "-f", "${Package}\\t${Version}\\n", "--", "a", reads=True),
        command("dpkg-query", "-W", "-f", "${Package}\\t${Architecture}\\n", "--", "a", reads=True),
        script(systemd.STATES, "a", reads=True),
        script(systemd.STATES, "a", reads=True, timeout_s=5),
        script(systemd.STATES, "a b", reads=True),
        script(systemd.STATES, "a"),
        files.file("/a").command,
        script("cat $1", "/a", reads=True),
        command("date", reads=True),
        command("date", reads=True),
    ]
    assert merging.merged(tuple(commands)) == ()


def test_every_answer_is_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A")
    commands = [
        command("echo", "1", reads=True), files.file(str(tmp_path / "a")).command, dpkg.packages("dpkg").command,
        command("echo", "2", reads=True),
        files.file(str(tmp_path / "b")).command, dpkg.packages("bash").command,
        command("sh", "-c", "exit 7", reads=True),
    ]  # fmt: skip
    answers = Shell().run(commands, together=True)
    assert [answer.stdout[:8].split(b"|")[0].split(b"\t")[0].strip() for answer in answers] == [
        b"1", b"regular", b"dpkg", b"2", b"absent", b"bash", b"",
    ]  # fmt: skip
    assert answers[6].code == 7


def test_many_files_are_asked_for_in_parts(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / str(number)).write_text(f"file {number}")
    facts = [files.file(str(tmp_path / str(number))) for number in range(150)]
    answers = Shell().run([fact.command for fact in facts], together=True)
    contents = [parsed(fact, answer).text for fact, answer in zip(facts, answers, strict=True)]
    assert contents == [f"file {number}" for number in range(150)]

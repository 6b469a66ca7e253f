"""Mistakes in files or on the command line stop a command before it connects; one message names the position."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rigwright.core.errors import Unreachable
from rigwright.inventory.model import Host
from rigwright.report import json_document
from rigwright.ssh import connect
from tests.cli.run_command import run_command
from tests.cli.test_programs import process
from tests.paths import ROOT

VERIFIED = connect.open_session
HOSTS = "gpu:\n  hosts:\n    one:\n      ansible_host: 127.0.0.1\n"
PLAY = "- name: A play\n  hosts: all\n  tasks:\n"
TASK = "    - name: A file\n      file.present: {path: /etc/x, content: x}\n"


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the hosts that this process would connect to; it makes no connection."""
    tried: list[str] = []

    def verified(host: Any, *_: Any) -> Any:
        tried.append(host.name)
        raise AssertionError(f"{host.name} was connected to")

    monkeypatch.setattr(connect, "open_session", verified)
    monkeypatch.delenv("RIGWRIGHT_INVENTORY", raising=False)
    return tried


class Files:
    """An inventory and a playbook in a folder, and the result of `plan` on them."""

    def __init__(self, folder: Path) -> None:
        self.inventory = folder / "inventory"
        self.playbook = folder / "playbooks" / "play.yml"
        (folder / "templates").mkdir()
        self.playbook.parent.mkdir()
        self.inventory.mkdir()
        self.write("hosts.yml", HOSTS)
        self.playbook.write_text(PLAY + TASK)

    def write(self, name: str, text: str) -> None:
        """Writes a file of the inventory."""
        path = self.inventory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))

    def error(self, capsys: pytest.CaptureFixture[str], **words: Any) -> dict[str, str]:
        """Returns the error of `plan --json -`: stdout has only the document, stderr one message without traceback."""
        given: dict[str, Any] = {"playbook": str(self.playbook), "inventory": str(self.inventory), **words}
        code = run_command("plan", json="-", **given)
        out, err = capsys.readouterr()
        document = json.loads(out)
        assert (code, document["exit_code"]) == (1, 1), err
        assert "Traceback" not in err, err
        found: dict[str, str] | None = document["error"]
        assert found, out
        assert err.startswith(f"error {found['where']}: ")
        assert err.count("error ") == 1
        assert found["found"]
        assert found["expected"] or found["fix"], "neither what was wanted nor what to do"
        return found


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_the_files_themselves_are_right(
    files: Files, capsys: pytest.CaptureFixture[str], connections: list[str]
) -> None:
    assert run_command("plan", playbook=str(files.playbook), inventory=str(files.inventory)) == 1
    assert connections == ["one"]
    assert "was connected to" in capsys.readouterr().err


NO_HOST = [
    ("unknown host", "on", "no host or group 'on'; did you mean 'one'?"),
    ("unknown group", "gpus", "no host or group 'gpus'; did you mean 'gpu'?"),
    ("nothing like it", "zebra", "no host or group 'zebra'"),
    ("zero matches", "gpu:!one", "matches no host"),
    ("glob", "x*", "no host or group 'x*'"),
    ("only separators", ":", "matches no host"),
    ("no regular expression", "~[", "'[' is not a valid regular expression"),
    ("shell text", "$(touch /tmp/rigwright-pwned)", "no host or group"),
]


@pytest.mark.parametrize(("pattern", "found"), [case[1:] for case in NO_HOST], ids=[case[0] for case in NO_HOST])
def test_a_pattern_that_names_nothing(
    files: Files, capsys: pytest.CaptureFixture[str], pattern: str, found: str, connections: list[str]
) -> None:
    error = files.error(capsys, host=pattern)
    assert error["where"] == f"--host {pattern}"
    assert error["found"].startswith(found)
    assert "has: one" in error["fix"]
    assert "ungrouped" not in error["found"]
    assert connections == []


def test_several_hosts_and_none_named(files: Files, capsys: pytest.CaptureFixture[str], connections: list[str]) -> None:
    files.write("hosts.yml", HOSTS + "    two:\n")
    error = files.error(capsys)
    assert error["where"] == "--host"
    assert "2 hosts" in error["found"]
    assert "one, two" in error["fix"]
    assert connections == []


INVENTORY = [
    # name, content from line 5 of hosts.yml on, line, found, expected or fix
    ("misspelt variable", "      limts: {power_limit_w: 200}", 5, "unknown variable 'limts'; did you mean 'limits'?",
     ""),
    ("misspelt driver key", "      driver: {brnch: '535'}", 5, "'brnch'; did you mean 'branch'?", "branch"),
    ("driver without branch", "      driver: {source: cuda}", 5, "'driver' lacks branch", "branch"),
    ("branch as a number", "      driver: {branch: 535}", 5, "'driver.branch' is 535", "in quotes"),
    ("branch as a float", "      driver: {branch: 535.54}", 5, "'driver.branch' is 535.54", "in quotes"),
    ("no branch at all", "      driver: {branch: latest}", 5, "latest", "535"),
    ("branch is shell text", "      driver: {branch: '$(reboot)'}", 5, "$(reboot)", "535"),
    ("unknown source", "      driver: {branch: '535', source: cda}", 5, "'cda'; did you mean 'cuda'?", ""),
    ("another branch's version", "      driver: {branch: '535', version: '550.54.14'}", 5, "550.54.14", "535"),
    ("driver is a text", "      driver: '535'", 5, "'driver' is '535'", "branch: ..."),
    ("command line as one text", "      kernel_cmdline: iommu=pt", 5, "'kernel_cmdline' is 'iommu=pt'", "a list"),
    ("watts as a text", "      limits: {power_limit_w: '200'}", 5, "'limits.power_limit_w' is '200'", "a whole number"),
    ("watts as a fraction", "      limits: {power_limit_w: 200.5}", 5, "is 200.5", "a whole number"),
    ("watts below zero", "      limits: {power_limit_w: -5}", 5, "-5", ""),
    ("persistence as a text", "      limits: {persistence: 'on'}", 5, "is 'on'", "true or false"),
    (
        "misspelt clock", "      limits:\n        application_clocks: {memory_mhz: 877, grafics_mhz: 1005}", 6,
        "'grafics_mhz'; did you mean 'graphics_mhz'?", "",
    ),
    ("half a clock", "      limits:\n        application_clocks: {memory_mhz: 877}", 6, "lacks graphics_mhz", ""),
    ("toolkit as a number", "      cuda: {toolkit: 12.2}", 5, "'cuda.toolkit' is 12.2", "in quotes"),
    ("unknown rig", "      rig: servbadg", 5, "unknown rig 'servbadg'; did you mean 'servbadge'?", "servbadge"),
    ("rig is a list", "      rig: [servbadge]", 5, "'rig' is ['servbadge']", "a text"),
    ("tab", "      rig:\n\t- x", 6, "tab", "spaces"),
    ("vault", "      secret: !vault |\n        6162", 5, "a !vault without encrypted text", "$ANSIBLE_VAULT;"),
    ("a source that is none", "      x: !secret {comand: [pass]}", 5, "did you mean 'command'?", "env, file, command"),
    ("python object", "      rig: !!python/object/apply:os.system ['touch /tmp/rigwright-pwned']", 5, "!!python", ""),
    ("key twice", "      rig: servbadge\n      rig: rig-3090", 6, "'rig' a second time (first in line 5)", "once"),
    ("key that is no text", "      yes: 1", 5, "True", "quotes"),
    ("unclosed bracket", "      kernel_cmdline: [iommu=pt", 6, "", ""),
    ("undefined variable", "      rig: '{{ no_such }}'", 5, "no_such", ""),
    ("variables in a circle", "      a1: '{{ b1 }}'\n      b1: '{{ a1 }}'", 5, "refers to itself", "cycle"),
    ("no name of a variable", "      my-var: 1", 5, "'my-var' is no name of a variable", "letters, digits and _"),
    ("no port", "      ansible_port: abc", 5, "'abc'", "1 to 65535"),
    ("port that is a power", "      ansible_port: ²", 5, "'²'", "1 to 65535"),
    ("port out of range", "      ansible_port: 99999", 5, "99999", "1 to 65535"),
    ("no kernel parameter", "      kernel_cmdline: ['$(touch /tmp/rigwright-pwned)']", 5, "is no kernel parameter",
     "NAME=VALUE"),
    ("two lines in a parameter", '      kernel_cmdline: ["iommu=pt\\nreboot"]', 5, "is no kernel parameter",
     "NAME=VALUE"),
    ("key file that is not there", "      ansible_ssh_private_key_file: /no/such/key", 5, "/no/such/key", ""),
    ("shell text for a group's key", "  vrs: {x: 1}", 5, "unknown key of a group 'vrs'; did you mean 'vars'?",
     "children"),
    ("fingerprint that is none", "      cuda_repository: {url: 'http://x/', fingerprint: '*'}", 5, "'*'", "40"),
    ("no URL", '      cuda_repository: {url: "http://x/ /\\ndeb [trusted=yes] http://evil/"}', 5, "url", "http"),
    ("lines in a password", '      ansible_become_password: "x\\ntouch /tmp/rigwright-pwned"', 5, "password",
     "one line"),
]  # fmt: skip


@pytest.mark.parametrize("case", INVENTORY, ids=[case[0] for case in INVENTORY])
def test_wrong_in_the_inventory(
    files: Files,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, str, int, str, str],
    connections: list[str],
) -> None:
    _name, text, line, found, wanted = case
    files.write("hosts.yml", HOSTS + text + "\n")
    error = files.error(capsys)
    assert found in error["found"]
    assert wanted in error["found"] + error["expected"] + error["fix"]
    assert error["where"].startswith(f"{files.inventory}/hosts.yml:{line}"), error
    assert connections == []
    assert not Path("/tmp/rigwright-pwned").exists()


def test_a_secret_stands_in_no_message(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write("hosts.yml", HOSTS + '      ansible_become_password: "hunter2\\ntouch /tmp/rigwright-pwned"\n')
    assert run_command("plan", playbook=str(files.playbook), inventory=str(files.inventory), json="-") == 1
    assert "hunter2" not in "".join(capsys.readouterr())


def test_wrong_in_host_vars_names_that_file(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (
        ("rig", "rig: servbadg"),
        ("kernel_cmdline", "kernel_cmdline: iommu=pt"),
        ("x", "rig: '{{ no }}'"),
    ):
        files.write("host_vars/one.yml", f"# a comment\n{text}\n")
        assert files.error(capsys)["where"].startswith(f"{files.inventory}/host_vars/one.yml:2"), name


def test_files_that_are_no_inventory(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no inventory there" in files.error(capsys, inventory="/no/such")["found"]
    files.write("hosts.yml", "- a\n- list\n")
    assert "hosts.yml" in files.error(capsys)["where"]
    files.write("hosts.yml", "gpu:\n  hosts:\n    one: {x: \udcff}\n")
    assert "cannot be read" in files.error(capsys)["found"]
    files.write("hosts.yml", "gpu: &a\n  hosts: {one: }\n  vars: {x: [*a]}\n")
    assert "hosts.yml" in files.error(capsys)["where"]


PLAYBOOK = [
    # name, the playbook, line, found, expected or fix
    ("no list", "name: x\n", 0, "no list of plays", "hosts"),
    ("empty", "", 0, "no list of plays", "hosts"),
    ("misspelt key of a play", "- name: x\n  hosts: all\n  taks: []\n", 3, "'taks'; did you mean 'tasks'?", "tasks"),
    ("play without hosts", "- name: x\n  tasks: []\n", 1, "a play without 'hosts'", "hosts: ..."),
    ("hosts that are nowhere", "- name: x\n  hosts: gpuu\n  tasks:\n" + TASK, 2, "gpuu", "gpu"),
    ("misspelt operation", PLAY + "    - file.presnt: {path: /x}\n", 4,
     "unknown operation 'file.presnt'; did you mean 'file.present'?", "file.present"),
    ("misspelt module", PLAY + "    - fil.present: {path: /x}\n", 4, "'fil.present'; did you mean 'file.present'?",
     "file.present"),
    ("misspelt task key", PLAY + TASK + "      whn: true\n", 6, "'whn'", "when"),
    ("misspelt parameter", PLAY + "    - file.present: {pth: /x, content: x}\n", 4,
     "unknown parameter of file.present 'pth'; did you mean 'path'?", "path"),
    ("missing parameter", PLAY + "    - file.present: {path: /x}\n", 4, "file.present lacks 'content'", "content: ..."),
    ("parameter of a wrong type", PLAY + "    - file.present: {path: /x, content: x, mode: 0644}\n", 4, "'mode' is 420",
     "in quotes"),
    ("parameters as a list", PLAY + "    - file.present: [x]\n", 4, "the parameters of file.present are ['x']",
     "NAME: VALUE"),
    ("two operations", PLAY + "    - file.present: {path: /x, content: x}\n      file.directory: {path: /x}\n", 4,
     "file.present, file.directory", "one operation a task"),
    ("undefined variable", PLAY + "    - file.present: {path: /x, content: '{{ no_such }}'}\n", 4,
     "'no_such' is undefined", "defined"),
    ("undefined in a text", PLAY + "    - file.present: {path: /x, content: 'a {{ no_such }}'}\n", 4,
     "'no_such' is undefined", "defined"),
    ("undefined in when", PLAY + TASK + "      when: no_such\n", 6, "'no_such' is undefined", "defined"),
    ("undefined in loop", PLAY + TASK + "      loop: '{{ no_such }}'\n", 6, "'no_such' is undefined", "defined"),
    ("template error", PLAY + "    - file.present: {path: /x, content: 'a {% if %}'}\n", 4, "template error",
     "valid Jinja2"),
    ("expression error", PLAY + "    - file.present: {path: /x, content: '{{ 1 + }}'}\n", 4, "1 +", ""),
    ("division by zero", PLAY + "    - file.present: {path: /x, content: '{{ 1 / 0 }}'}\n", 4, "division by zero", ""),
    ("no such template", PLAY + "    - file.template: {path: /x, template: nope.j2}\n", 4, "no such template",
     "one of"),
    ("the sandbox holds", PLAY + "    - file.present: {path: /x, content: \"{{ ''.__class__.__mro__ }}\"}\n", 4, "",
     ""),
    ("tab", "- name: x\n\thosts: all\n", 2, "tab", "spaces"),
    ("vault", PLAY + "    - file.present: {path: /x, content: !vault x}\n", 4, "!vault", ""),
    ("NUL in a path", PLAY + '    - file.present: {path: "/tmp/a\\0b", content: x}\n', 4, "path", ""),
    ("relative path", PLAY + "    - file.present: {path: etc/x, content: x}\n", 4, "etc/x", "/"),
    ("mode that is none", PLAY + "    - file.present: {path: /etc/x, content: x, mode: 'rw-'}\n", 4, "rw-", "octal"),
    ("half a character", PLAY + '    - file.present: {path: /x, content: "\\ud800"}\n', 4, "", ""),
]  # fmt: skip


@pytest.mark.parametrize("case", PLAYBOOK, ids=[case[0] for case in PLAYBOOK])
def test_wrong_in_the_playbook(
    files: Files,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, str, int, str, str],
    connections: list[str],
) -> None:
    _name, text, line, found, wanted = case
    files.playbook.write_text(text)
    error = files.error(capsys)
    assert found in error["found"]
    assert wanted in error["found"] + error["expected"] + error["fix"]
    assert error["where"].startswith(f"{files.playbook}:{line}" if line else str(files.playbook)), error
    assert connections == []


def test_wrong_in_a_template_names_its_line(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.playbook.write_text(PLAY + "    - file.template: {path: /x, template: t.j2}\n")
    template = files.playbook.parent.parent / "templates" / "t.j2"
    template.write_text("one\ntwo {{ no_such }}\n")
    error = files.error(capsys)
    assert error["where"].endswith("templates/t.j2:2"), error
    assert "no_such" in error["found"]
    template.write_text("one\n{% fi %}\n")
    assert files.error(capsys)["where"].endswith("templates/t.j2:2")


def test_a_tag_that_no_step_has(files: Files, capsys: pytest.CaptureFixture[str], connections: list[str]) -> None:
    error = files.error(capsys, tags="drvier")
    assert "drvier" in error["found"]
    files.playbook.write_text(PLAY + TASK + "      tags: [always]\n" + TASK + "      tags: [driver]\n")
    error = files.error(capsys, tags="drvier")
    assert "drvier" in error["found"]
    assert "driver" in error["found"] + error["expected"] + error["fix"]
    assert connections == []


def test_playbook_that_is_not_there(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    error = files.error(capsys, playbook="playbooks/provison.yml")
    assert error["where"] == "--playbook"
    assert "playbooks/provison.yml is not there" in error["found"]


@pytest.mark.parametrize(
    ("option", "file", "words", "todo"),
    [
        ("html", "/no/such/folder/x.html", "the directory /no/such/folder does not exist", "mkdir -p /no/such/folder"),
        ("html", "-", "'-' is no file", "--html report.html"),
        ("html", "/tmp", "'/tmp' is no file", "--html report.html"),
        ("json", "/no/such/folder/x.json", "the directory /no/such/folder does not exist", "mkdir -p /no/such/folder"),
        ("json", "/tmp", "'/tmp' is no file", "--json run.json"),
        ("json", "/etc/hostname/x.json", "the directory /etc/hostname is not writable", "--json run.json"),
        ("prometheus", "/tmp", "'/tmp' is no file", "--prometheus fleet.prom"),
        ("prometheus", "/srv/metrics/rig.txt", "'/srv/metrics/rig.txt' does not end in .prom",
         "--prometheus /srv/metrics/rig.prom"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_told_before_the_run(
    files: Files,
    capsys: pytest.CaptureFixture[str],
    connections: list[str],
    option: str,
    file: str,
    words: str,
    todo: str,
) -> None:
    command = "fleet.report" if option == "prometheus" else "verify"
    assert run_command(command, host="one", inventory=str(files.inventory), **{option: file}) == 1
    out = capsys.readouterr().out
    assert words in out
    assert out.count("error") == 1
    assert ("fix: " in out) == bool(todo)
    assert todo in out
    assert connections == []


# --- the command line


def _invoke(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command; in its messages the program is `invoke`."""
    done = process(sys.executable, "-m", "invoke", *words, **environment)
    done.stderr = done.stderr.replace(f"{sys.executable} -m invoke", "invoke")
    return done


USAGE = [
    ("a word where a flag belongs", ["provision", "servbadge"], "servbadge"),
    ("misspelt flag", ["plan", "--hots", "servbadge"], "--hots"),
    ("unknown task", ["provison", "--host", "x"], "provison"),
    ("flag without its value", ["plan", "--host", "x", "--tags"], "tags"),
]


@pytest.mark.parametrize("words", [case[1:] for case in USAGE], ids=[case[0] for case in USAGE])
def test_usage_errors_as_text_and_as_json(words: tuple[list[str], str]) -> None:
    argv, found = words
    done = _invoke(argv[0], "--json", "-", *argv[1:])
    assert "Traceback" not in done.stderr
    assert found in done.stderr
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["hosts"]) == (1, 1, {})
    assert document["schema"] == json_document.SCHEMA
    assert found in document["error"]["found"]
    assert "--help" in document["error"]["fix"]


def test_an_unknown_rig_of_the_lab() -> None:
    done = _invoke("lab.up", "--rig", "servbadg")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "did you mean 'servbadge'" in done.stderr


@contextmanager
def listener(greeting: bytes = b"", close: bool = False) -> Iterator[int]:
    """Yields the port of a loopback socket that sends only this text."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                kept.append(line)
                line.sendall(greeting)
                if close:
                    line.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
    for line in kept:
        line.close()


def _loopback(files: Files, port: int, count: int = 1) -> None:
    hosts = [f"    h{number}: {{ansible_host: 127.0.0.1, ansible_port: {port}}}\n" for number in range(count)]
    files.write("hosts.yml", "gpu:\n  hosts:\n" + "".join(hosts))


def _plan(files: Files, *words: str) -> subprocess.CompletedProcess[str]:
    given = ["--playbook", str(files.playbook), "--inventory", str(files.inventory)]
    return _invoke("plan", *given, "--json", "-", *words)


SERVERS = [
    ("speaks another language", b"HTTP/1.0 400 Bad Request\r\n\r\n" * 200, False),
    ("hangs up", b"", True),
    ("hangs up after its greeting", b"SSH-2.0-OpenSSH_9.6\r\n", True),
]


@pytest.mark.parametrize(("greeting", "close"), [case[1:] for case in SERVERS], ids=[case[0] for case in SERVERS])
def test_a_port_that_is_no_sshd(files: Files, greeting: bytes, close: bool) -> None:
    with listener(greeting, close) as port:
        _loopback(files, port)
        done = _plan(files)
    _unreachable(done, "127.0.0.1")


def _unreachable(done: subprocess.CompletedProcess[str], *found: str) -> None:
    document = json.loads(done.stdout)
    (host,) = document["hosts"].values()
    assert (done.returncode, host["status"]) == (3, "unreachable"), done.stderr
    assert "Traceback" not in done.stderr
    error = host["error"]
    assert error["found"]
    assert error["expected"]
    assert error["fix"]
    for words in found:
        assert words in " ".join(error.values())
    assert not re.search(r"\(\w*(Error|Exception): ?\)", error["found"]), "an exception without a word"


def test_refused_and_unresolved_are_unreachable(files: Files) -> None:
    with socket.socket() as bound:  # a free port on which no program listens
        bound.bind(("127.0.0.1", 0))
        _loopback(files, bound.getsockname()[1])
        _unreachable(_plan(files), "refused", "ansible_port")
    files.write("hosts.yml", "gpu:\n  hosts:\n    one: {ansible_host: no-such-host.invalid}\n")
    _unreachable(_plan(files), "cannot be resolved", "hosts.yml:3")


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.6\r\n"], ids=["silent", "silent after its greeting"])
def test_a_host_that_never_speaks_ends_within_the_deadline(greeting: bytes) -> None:
    assert connect.CONNECT_S <= 30
    started = time.monotonic()
    with listener(greeting) as port, pytest.raises(Unreachable) as caught:
        VERIFIED(
            Host("one", (), {"ansible_host": "127.0.0.1", "ansible_port": port}, "hosts.yml:3"), 1.5, lambda _: None
        )
    assert time.monotonic() - started < 60
    assert "no login within 1.5 s" in caught.value.found
    assert caught.value.expected
    assert "hosts.yml:3" in caught.value.fix


def test_a_host_that_says_a_byte_a_second_ends_within_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line, suppress(OSError):
                for byte in b"SSH-2.0-OpenSSH_9.6\r\n" * 9:
                    line.sendall(bytes([byte]))
                    time.sleep(1)

        threading.Thread(target=serve, daemon=True).start()
        started = time.monotonic()
        port = server.getsockname()[1]
        with pytest.raises(Unreachable, match="no login within 2 s"):
            VERIFIED(Host("one", (), {"ansible_host": "127.0.0.1", "ansible_port": port}, "x"), 2, lambda _: None)
        assert time.monotonic() - started < 60


def _connected(port: int) -> None:
    """Waits until a client is connected to this loopback port."""
    deadline = time.monotonic() + 20
    while f":{port:04X} 01 " not in Path("/proc/net/tcp").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("count", [1, 3])
def test_interrupted_while_hosts_do_not_answer(files: Files, count: int) -> None:
    with listener() as port:
        _loopback(files, port, count)
        words = ["--playbook", str(files.playbook), "--inventory", str(files.inventory), "--host", "all"]
        with subprocess.Popen(
            [sys.executable, "-m", "invoke", "plan", *words, "--json", "-"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            _connected(port)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=90)
    assert "no login within" not in out + err, "Ctrl-C has to wait for hosts that do not answer"
    assert process.returncode == 130, err
    assert json.loads(out)["exit_code"] == 130
    assert "Traceback" not in err


def test_a_list_whose_reader_ends_is_no_error() -> None:
    done = process("bash", "-c", f"set -o pipefail; {sys.executable} -m invoke --list | head -1")
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["provison", "--host", "a"],
            "fix:      invoke provision --host a; all commands: invoke --list, then invoke provision --help\n",
        ),
        (["fleet.chek"], "fix:      invoke fleet.check; all commands: invoke --list"),
        (["verify", "servbadge"], "fix:      invoke verify --host servbadge; all flags: invoke verify --help\n"),
        (["verify", "--host"], "fix:      invoke inventory.list shows the hosts; all flags: invoke verify --help\n"),
        (
            ["limits", "--power", "200"],
            "fix:      power limits and clocks stand in the inventory: limits: {power_limit_w: 200}; all flags",
        ),
        (["explain", "Xid", "79"], "a text of several words stands in quotes: invoke explain 'Xid 79'"),
        (["verify", "--hots", "a"], "fix:      invoke verify --host a; all flags: invoke verify --help\n"),
        (["verify", "--hots=a"], "fix:      invoke verify --host=a; all flags: invoke verify --help\n"),
        (["--host", "a", "verify"], "flags stand after the command: invoke verify --host a"),
        (["verify", "-h"], "fix:      invoke verify --help"),
        (["init"], "error init: --host and --address are missing\n"),
        (
            ["fleet.report", "--html"],
            "error fleet.report: --html has no value\n  expected: a value after it: write the page",
        ),
        (["nonsense"], "error command line: 'nonsense' is no command\n"),
        (
            ["verify", "--hots", "a"],
            "error verify: '--hots' is no flag\n  expected: --json, --inventory, --vault-password-file, --host, ",
        ),
        (["verify", "servbadge"], "error verify: 'servbadge' is one word too many\n"),
        (
            ["history.diff"],
            "error history.diff: HOST is missing\n  expected: the name of a host in the recorded runs\n",
        ),
        (["verify", "--quick=yes"], "error verify: --quick takes no value\n  expected: --quick alone\n"),
        (["--host", "a"], "error command line: '"),
        (["init", "--host", "a"], "error --address: is missing, and inventory has no host 'a'\n"),
    ],
)
def test_a_command_line_that_invoke_cannot_read(words: list[str], told: str) -> None:
    done = _invoke(*words)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["history.show", "history.diff"])
def test_help_of_a_command_with_a_positional_argument(command: str) -> None:
    done = _invoke(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"[--core-opts] {command} [--options]" in done.stdout.splitlines()[0]

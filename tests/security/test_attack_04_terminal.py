"""Attack 4: text of a host that controls the terminal, hides what it says, or fills the screen with one line."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rich.table import Table
from rich.text import Text

from rigwright.checks import Finding
from rigwright.core.control_characters import KEPT, LONGEST_LINE, escaped, harmless, one_line, visible
from rigwright.core.errors import HostError
from rigwright.core.process.streams import HarmlessStream
from rigwright.engine import events
from rigwright.inventory.model import Host
from rigwright.report import terminal
from rigwright.report.console import console_on
from rigwright.report.labels import as_is
from rigwright.report.live import Region
from tests import reports
from tests.paths import ROOT, files

HOSTILE = (
    "\x1b]52;c;cm0gLXJmIH4=\x07", "\x1b]8;;https://evil.example\x1b\\", "\x1bP+q\x1b\\", "\x1b[2J", "\x9b31m",
    "\x9d0;t\x9c", "\x00", "\x08", "\r",
    "\x7f", "\u202e", "\u2066", "\u200f", "\u061c", "\u2028", "\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad",
    "\u034f", "\u3164",
    "\ufe0f", "\U000e0041", "\U000e0100", "\ud800",
)  # fmt: skip
ALL = "".join(HOSTILE)
OWN = re.compile(r"\x1b\[[0-9;]*[mKAJH]|\x1b\[\?25[hl]|\r\n|\r")
"""What rich writes for colours, the cursor and progress lines."""
LINK = "[link=https://evil.example]here[/link]"


def _foreign(written: str) -> list[str]:
    """Everything in what was written that is neither text nor rich's own."""
    rest = OWN.sub("", written)
    return re.findall(r"[^\n\t -~\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027\u2030-\u205e\u2190-\u2bff\ufffd]", rest)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_every_control_and_format_character_is_replaced() -> None:
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    left = [
        f"{at:x}" for at in range(0x110000) if unicodedata.category(chr(at)) in kinds and visible(chr(at)) != "\ufffd"
    ]
    assert left == ["9", "a"]  # tab and newline
    for character in HOSTILE:
        assert _foreign(visible(character)) == []
        text = json.dumps(f"a{character}b", ensure_ascii=False)
        assert json.loads(escaped(text)) == f"a{character}b"
        assert _foreign(escaped(text)) == []


def test_no_text_of_a_host_controls_the_terminal_that_shows_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    stream, said = _Terminal(), f"{ALL}{LINK}[bold red]loud[/][/nothing]\\"
    text = terminal.Text(stream, said, many=True)
    host = Host("one", {"ansible_host": "192.0.2.1"}, "hosts.yml")
    finding = Finding("pcie", "fail", said, said, said, said, check="pcie.width")
    with text.stage(["one", "two"]):
        for event in (
            events.ActivityStarted("one", said), events.Connected("one", said, said),
            events.StepStarted("one", said, ()), events.OutputLine("one", said, said),
            events.Note("one", said), events.StepDone("one", said, "failed", said, 1.0),
        ):  # fmt: skip
            text.event(event)
    text.line(said.replace("[/nothing]", ""))  # a caller that forgot to escape it
    text.plain(said)
    text.warn(said)
    text.findings(reports.report(host, findings=(finding,)))
    text.error(HostError(said, said, said, said))
    text.console.out(said)
    text.console.print(Text(said), Text("x", style="link https://evil.example"))
    table = Table(as_is(said), title=as_is(said))
    table.add_row(as_is(said), Text(said))
    text.console.print(table)
    with Region(text.console, ["one", "two"]) as region:
        print(said)  # rich writes it above the progress lines
        region.takes(events.OutputLine("two", said, said))
    written = stream.getvalue()
    assert _foreign(written) == []
    for ours in ("\x1b[1m", "\x1b[1;31m", "[bold red]loud", LINK):
        assert ours in written


EVERYTHING = """
import getpass, logging, sys, threading, warnings
from invoke.exceptions import Exit
from rigwright.cli import program
from rigwright.core.process import prompt, streams
from rigwright.core.errors import HostError
from rigwright.report.console import console_on

said = eval(sys.argv[1])
streams.guard()
sys.stdout.write(said + "\\n"); sys.stdout.writelines([said, "\\n"])
print(said); print(said, file=sys.stderr)
logging.warning(said)
warnings.warn(said)
console_on().print("[bold green]own style[/]")
prompt.answer(said)
prompt.password(said)
thread = threading.Thread(target=lambda: int(said)); thread.start(); thread.join()
namespace = program.collection(())
from invoke import Program, task
from invoke.collection import Collection
def fails(c): raise Exit(said, 3)
program_ = Program(namespace=Collection(task(fails)))
program_.run(["x", "fails"], exit=False)
raise HostError(said, said) from ValueError(said)
"""


def test_nothing_that_this_process_prints_controls_the_terminal() -> None:
    said = "".join(character for character in HOSTILE if character != "\ud800")
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(
        [sys.executable, "-c", EVERYTHING, ascii(said)], stdin=child, stdout=child, stderr=child, env=environment,
        cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    os.close(child)
    os.write(parent, b"answer\n")
    written = b""
    while True:
        try:
            block = os.read(parent, 65536)
        except OSError:  # the last process that had the terminal open has ended
            break
        written += block
        if b"sudo password on " in block:  # what was typed before the question is thrown away
            os.write(parent, b"secret\n")
    os.close(parent)
    assert process.wait(60) == 1
    shown = written.decode("utf-8")
    assert _foreign(shown) == []
    assert "\x1b[1;32mown style" in shown
    for expected in ("WARNING", "UserWarning", "sudo password on ", "Exception in thread", "HostError"):
        assert expected in shown
    assert shown.count(visible(said)) >= 10


def test_a_long_line_is_cut_and_says_so() -> None:
    long = "x" * (4 * LONGEST_LINE)
    stream = _Terminal()
    HarmlessStream(stream).write(f"{long}\nshort\n")
    for console in (console_on(stream, width=120, soft_wrap=True), console_on(stream, width=120)):
        console.print(f"[bold]{long}[/]")
        console.print(Text(long))
        console.print(as_is(long))
        console.out(long)
    written = re.sub(r"\s", "", OWN.sub("", stream.getvalue()))
    assert len(written) <= 9 * LONGEST_LINE + len("short")
    assert written.count(f"...({4 * LONGEST_LINE - KEPT}morecharacters)") == 9
    assert harmless("a\n" + long).startswith("a\nxxx")
    assert len(one_line(long)) == len(long)  # only what is shown is cut


def test_a_json_document_on_stdout_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from rigwright.core.process import streams
    from rigwright.report import json_document

    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", HarmlessStream(stream))
    streams.write_document(json_document.dumps({"log": ALL + "x" * 100_000}))
    assert json.loads(stream.getvalue()) == {"log": ALL + "x" * 100_000}
    assert not re.search("[\x1b\x9b\u202e\u200b]", stream.getvalue())


@given(st.text(st.sampled_from("[[[]]]\\\\/ab#@=1 \n"), max_size=30))
def test_markup_in_text_is_text(text: str) -> None:
    assert Text.from_markup(f"[bold]{as_is(text)}[/]", emoji=False).plain == text


def test_only_one_module_makes_a_console() -> None:
    """Every other module gets its console, or writes to stdout and stderr, which are filtered."""
    for path in files("rigwright/**/*.py"):
        allowed = {Path("report/console.py"), Path("core/process/streams.py")}
        if path.relative_to(ROOT / "rigwright") in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).rpartition(".")[2]
                assert called not in ("Console", "SafeConsole", "get_console", "unfiltered"), f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("__stdout__", "__stderr__"), f"{path}:{node.lineno}"

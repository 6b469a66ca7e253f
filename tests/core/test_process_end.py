"""The end of a process without the interpreter's cleaning: the same exit code and output as with it."""

from __future__ import annotations

import subprocess
import sys

import pytest


def ended(program: str, end: str = "process_end.run(program)") -> subprocess.CompletedProcess[str]:
    """How a process ends that runs a program."""
    code = f"import atexit, sys, threading, time\nfrom rigwright.core import process_end\n{program}\n{end}\n"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return 5", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("sys.exit()", 0),
        ("sys.exit(256)", 0),
        ("sys.exit('words')", 1),
        ("raise ValueError('no')", 1),
    ],
)
def test_code_and_output_are_those_of_python(body: str, code: int) -> None:
    program = f"def program():\n  print('out', end='')\n  sys.stderr.write('error ')\n  {body}"
    here, usual = ended(program), ended(program, "program()")
    assert (here.returncode, here.stdout) == (code, "out")
    assert here.stderr.splitlines()[:1] == usual.stderr.splitlines()[:1]


def test_functions_of_atexit_are_called() -> None:
    program = "def program():\n  atexit.register(print, 'first'); atexit.register(print, 'second')"
    assert ended(program).stdout == "second\nfirst\n"


def test_a_thread_at_work_is_waited_for() -> None:
    program = "def work():\n  time.sleep(0.3); print('done')\ndef program():\n  threading.Thread(target=work).start(); sys.exit(2)"
    assert (ended(program).returncode, ended(program).stdout) == (2, "done\n")


def test_a_daemon_thread_is_not_waited_for() -> None:
    program = "def program():\n  threading.Thread(target=time.sleep, args=[50], daemon=True).start()"
    assert ended(program).returncode == 0


def test_nothing_is_freed() -> None:
    program = "class Kept:\n  def __del__(self): print('freed')\nkept = Kept()\ndef program(): pass"
    assert (ended(program).stdout, ended(program, "program()").stdout) == ("", "freed\n")

"""Secrets: replaced by value in every form in which a text can be written, and made by templates without being
shown."""

from __future__ import annotations

import base64
import html
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import markupsafe
import pytest
from rich.markup import escape

from rigwright.core import secrets
from rigwright.core.control_characters import visible
from rigwright.core.errors import HostError, InputError
from rigwright.core.secrets import SHOWN, Secret
from rigwright.core.templates import rendering
from rigwright.core.templates.variables import render_file, settled
from rigwright.engine import events
from tests.machine_speed import within
from tests.paths import ROOT

CANARY = 'can\'ary "7" [x]&<é>/+\\ok'


def base64_after(before: str) -> Callable[[str], str]:
    """Returns the function that encodes a text with another text before it."""
    return lambda text: base64.b64encode((before + text + "end").encode()).decode()


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "repr": repr,
    "JSON": json.dumps,
    "JSON in UTF-8": lambda text: json.dumps(text, ensure_ascii=False),
    "a shell": shlex.quote,
    "HTML": html.escape,
    "HTML of the page": lambda text: str(markupsafe.escape(text)),
    "a URL": quote,
    "a part of a URL": lambda text: quote(text, safe=""),
    "a form": quote_plus,
    "rich": escape,
    "hexadecimal": lambda text: text.encode().hex(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    **{f"base64 after {number}": base64_after("x" * number) for number in range(4)},
    "base64 of a URL": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
}


@pytest.mark.parametrize("written", FORMS.values(), ids=FORMS)
def test_a_known_secret_is_replaced_in_every_form(written: Callable[[str], str]) -> None:
    text = written(CANARY)
    assert secrets.redacted(text) == text, "nothing is replaced before it is known"
    Secret(CANARY)
    left = secrets.redacted(f"<{text}>")
    assert SHOWN in left
    assert len(left) < len(text), left


def test_which_texts_and_names_are_secrets() -> None:
    Secret("-----BEGIN KEY-----\nAAAAB3NzaC1yc2E\nend\n")
    Secret("abc")
    assert secrets.redacted("x AAAAB3NzaC1yc2E y; the end; abc") == f"x {SHOWN} y; the end; abc"
    names = "token HF_TOKEN db_password api_key apikey aws_secret_key ssh_passphrase credentials"
    assert [name for name in names.split() if not secrets.is_name(name)] == []
    others = "key token_limit passage keyboard_key ansible_ssh_private_key_file surpass"
    assert [name for name in others.split() if secrets.is_name(name)] == []


def test_documents_messages_and_events_have_no_secret() -> None:
    Secret("hosts")
    Secret("pass")
    given = {"hosts": [{"verdict": "pass", "seen": "it did pass", "n": 1}], "text": ("hosts",)}
    wanted = {"hosts": [{"verdict": "pass", "seen": f"it did {SHOWN}", "n": 1}], "text": [SHOWN]}
    assert secrets.redacted_document(given) == wanted
    Secret(CANARY)
    assert CANARY not in str(HostError("h", f"found {CANARY}", f"expected {CANARY}", CANARY))
    assert CANARY not in visible(CANARY)
    event = events.redacted(events.OutputLine("h", "a step", f"token={CANARY}"))
    assert event == events.OutputLine("h", "a step", f"token={SHOWN}")


def test_a_traceback_has_no_secret() -> None:
    code = (
        "import threading; from rigwright.core.process import streams; from rigwright.core.secrets import Secret\n"
        "streams.guard()\n"
        f"text = Secret({CANARY!r}).reveal()\n"
        "def fail(): raise ValueError(f'not good: {text}')\n"
        "one = threading.Thread(target=fail); one.start(); one.join()\n"
        "print(text); fail()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == f"{SHOWN}\n"
    assert done.stderr.count(f"ValueError: not good: {SHOWN}") == 2
    assert CANARY not in done.stderr


def test_replacing_takes_no_long_time() -> None:
    for number in range(20):
        Secret(f"canary-{number}-xyzzy")
    began = time.process_time()
    secrets.redacted("canary-7-xyzz" * 300_000)
    assert within(time.process_time() - began, 1)


class Source:
    """Counts how often a secret was read."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, 0

    def __call__(self) -> str:
        self.asked += 1
        return self.text


def test_a_template_of_a_secret_is_a_secret_that_is_made_when_needed() -> None:
    source, other = Source("swordfish"), Source("other")
    variables = {
        "vault": Secret(source),
        "nested": {"token": Secret(source), "user": "ada", "list": [Secret(source), "b"]},
        "other": Secret(other),
        "become": "{{ vault }}",
        "url": "https://{{ nested.user }}:{{ become }}@h",
        "app": {"upper": "{{ nested.token | upper }}", "plain": "{{ inventory }}"},
        "inventory": "i",
        "of a vault": Secret("https://u:key@{{ inventory }}"),
        "all": "{% for each in nested['list'] %}{{ each }},{% endfor %}",
        "items": "{% for key, value in nested | dictsort %}{{ key }}{% endfor %}",
    }
    done = settled(dict(variables), "here")
    assert source.asked == other.asked == 0
    hidden = dict.fromkeys(("become", "url", "all", "items", "of a vault"), Secret("x"))
    assert str(done) == str({**variables, **hidden, "app": {"upper": Secret("x"), "plain": "i"}})
    revealed = [done[name].reveal() for name in ("become", "url", "all", "items")] + [done["app"]["upper"].reveal()]
    assert done["of a vault"].reveal() == "https://u:key@i"
    assert revealed == ["swordfish", "https://ada:swordfish@h", "swordfish,b,", "listtokenuser", "SWORDFISH"]
    assert other.asked == 0
    assert rendering.evaluate("nested.token == 'swordfish'", done, "here") is True
    assert secrets.redacted("SWORDFISH https://ada:swordfish@h") == f"{SHOWN} {SHOWN}"


def test_an_error_of_a_template_does_not_show_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "a.j2"
    file.write_text("\n{{ [1][vault] }}")
    made = render_file(file, {"vault": Secret("swordfish")})
    assert isinstance(made, Secret)
    with pytest.raises(InputError) as caught:
        made.reveal()
    assert caught.value.where == f"{file}:2"
    assert "swordfish" not in str(caught.value)

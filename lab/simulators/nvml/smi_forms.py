"""nvidia-smi of branches that are newer than the newest real one: the real one with its lines reworded
(smi_forms.yml)."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_suffix(".yml")
REAL = "/usr/lib/nvidia/nvidia-smi"
"""Where a package with a wrapper has the real program."""

_WRAPPER = """#!/bin/sh
# nvidia-smi of driver {version}: the real one of an earlier branch, with the lines that this branch words otherwise.
real={real} hardware=${{NVMLSIM_DIR:-/run/lab/hw}}
case " $* " in *" -q "*|*" --query "*|*" nvlink "*) ;; *) exec "$real" "$@";; esac
out=$("$real" "$@"; echo ". $?")
status=${{out##*. }} out=${{out%. *}}
for store in board.conf nvram/nvram volatile/state; do [ ! -f "$hardware/$store" ] || sed "s/^/=/" "$hardware/$store"; done |
  {{ cat; printf '%s' "$out"; }} | awk {program}
exit "$status"
"""
_PROGRAM = r"""
function value(key, absent) { return (number, key) in state && state[number, key] != "" ? state[number, key] : absent }
function yes(key) { return value(key, 0) + 0 ? "Yes" : "No" }
function labelled(label, text) { printf "%-" (index($0, ":") > 1 ? index($0, ":") - 1 : 38) "s: %s\n", label, text }
function element(name, text) { match($0, /^[ \t]*/); printf "%s<%s>%s</%s>\n", substr($0, 1, RLENGTH), name, text, name }
/^=gpu[0-9]+\./ {
  at = index($0, "."); is = index(substr($0, 2), "=") + 1
  key = substr($0, at + 1, is - at - 1); state[substr($0, 5, at - 5), key] = substr($0, is + 1)
  if (key == "bus_id") place[toupper(substr($0, is + 1))] = substr($0, 5, at - 5)
  next
}
/^=/ { next }
/<gpu id="|^GPU [0-9A-F]+:[0-9A-F]+:/ { match($0, /[0-9A-F]+:[0-9A-F][0-9A-F]:[0-9A-F][0-9A-F]\.[0-9]/); number = place[substr($0, RSTART + (RLENGTH > 12 ? RLENGTH - 12 : 0), 12)] }
until != "" { if ($0 ~ until) until = ""; next }
"""


def forms(version: str) -> list[dict[str, Any]]:
    """Returns the forms that apply to a driver version."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["forms"]
    return [form for form in table if int(version.split(".")[0]) >= form["since"]]


def wrapper(version: str, real: str = REAL) -> str | None:
    """Returns the shell script that stands for nvidia-smi of this version; None if the real program prints all as it
    should."""
    rules = "".join(map(_rule, forms(version)))
    if not rules:
        return None
    return _WRAPPER.format(
        version=version, real=shlex.quote(real), program=shlex.quote(f"{_PROGRAM}{rules}{{ print }}\n")
    )


def _rule(form: dict[str, Any]) -> str:
    """Returns the awk rule of a form."""
    line = json.dumps(form["line"])
    if "by" in form:
        return f"$0 ~ {line} {{ sub({line}, {json.dumps(form['by'])}) }}\n"
    if "drop_to" in form:
        return f"$0 ~ {line} {{ until = {json.dumps(form['drop_to'])}; next }}\n"
    key = json.dumps(form["key"])
    text = f"yes({key})" if form.get("flag") else f"value({key}, {json.dumps(form['absent'])})"
    if "xml" in form:
        return f"$0 ~ {line} {{ element({json.dumps(form['xml'])}, {text}) }}\n"
    return f"$0 ~ {line} {{ labelled({json.dumps(form['label'])}, {text}) }}\n"

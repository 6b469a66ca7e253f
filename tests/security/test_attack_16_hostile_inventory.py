"""An inventory cannot stop the machine that reads it: bytes, values and nesting of its files; its templates cannot
leave the sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rigwright.core import yaml_source
from rigwright.core.errors import InputError
from rigwright.core.templates import rendering
from rigwright.core.templates.variables import fill, render_file, settled
from rigwright.inventory import read
from tests.machine_speed import within
from tests.paths import ROOT

BOUND_S = 20.0
"""The processor time in which every attack must have been refused; without limits each takes minutes or has no end."""


def refused(attack: Any, *words: Any) -> InputError:
    """Returns the error of an attack, which must come within the time limit and must be short."""
    began = time.process_time()
    with pytest.raises(InputError) as caught:
        attack(*words)
    assert within(time.process_time() - began, BOUND_S)
    assert len(str(caught.value)) < 600
    assert caught.value.expected
    return caught.value


LEVELS = range(1, 12)
YAML = {
    "aliases of aliases": (
        "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in LEVELS),
        6,
        "more than 500000 values",
    ),
    "a chain of aliases": (
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 3000)), 100, "nested too deep"),
    "an alias inside its own anchor": ("a: &a {b: [*a]}\n", 1, "nested too deep"),
    "brackets": ("a:\n  " + "[" * 500_000, 2, "nested too deep"),
    "indented lists": ("a:\n" + "- " * 500_000 + "x", 2, "nested too deep"),
    "an object of Python": ("\na: !!python/object/apply:os.system [id]\n", 2, "!!python/object/apply:os.system"),
    "a set": ("a: !!set {b}\n", 1, "!!set"),
}  # fmt: skip


@pytest.mark.parametrize("name", YAML)
def test_a_yaml_file_is_refused_with_its_line(name: str) -> None:
    text, line, found = YAML[name]
    error = refused(yaml_source.loads, text, "hosts.yml")
    assert (error.where, found in error.found) == (f"hosts.yml:{line}", True), str(error)


def test_many_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a smaller limit, because the reader takes 10 s for the 500,000 that it allows."""
    monkeypatch.setattr(yaml_source, "MOST_VALUES", 20_000)
    error = refused(yaml_source.loads, f"\na: [{'1,' * 600_000}]", "hosts.yml")
    assert (error.where, error.found) == ("hosts.yml:2", "more than 20000 values, each use of an anchor counted")


def test_a_number_without_an_end_is_a_text() -> None:
    """YAML's numbers in base 60 took minutes: each part multiplies all before it."""
    began = time.process_time()
    text = "1" + ":1" * 1_000_000
    assert yaml_source.loads(f"a: {text}", "hosts.yml") == {"a": text}
    assert within(time.process_time() - began, BOUND_S)


def test_brackets_in_comments_and_texts_are_not_nesting() -> None:
    assert yaml_source.loads("# [\n" * 200 + f"a: '{'[' * 200}'\n", "hosts.yml") == {"a": "[" * 200}


def test_a_file_is_read_up_to_16_mib(tmp_path: Path) -> None:
    """The file is sparse, and 100 GB long."""
    path = tmp_path / "hosts.yml"
    path.touch()
    os.truncate(path, 100 << 30)
    assert refused(yaml_source.load, path).found == "more than 16 MiB"
    assert refused(read, tmp_path).where == str(path)


def deep(levels: int) -> str:
    """Returns groups that each hold the two groups of the next level: 2 ** levels ways lead to the last."""
    lines = [f"[{side}{n}:children]\na{n + 1}\nb{n + 1}" for n in range(levels) for side in "ab"]
    return "\n".join([*lines, f"[a{levels}]\nhost\n[b{levels}]\nhost\n"])


INI = {
    "a chain of groups": ("\n".join(f"[g{n}:children]\ng{n + 1}" for n in range(3000)) + "\n[g3000]\nh\n",
                          "inside each other"),
    "a long line": ("h a=" + "x" * 16_000_000, "a line of 16000004 characters"),
    "a section of blanks": ("[" + " " * 16_000 + "x\n", "brackets without a range"),
    "a host of brackets": ("[" * 16_000 + "\n", "the name of a host has 16000 characters"),
    "ranges of ranges": ("h" + "[1:900]" * 30 + "\n", "stands for more than"),
    "a range of a long number": ("h[1:" + "9" * 200 + "]\n", "names no host"),
}  # fmt: skip


@pytest.mark.parametrize("name", INI)
def test_an_ini_file_is_refused(tmp_path: Path, name: str) -> None:
    text, found = INI[name]
    file = tmp_path / "hosts"
    file.write_text(text)
    error = refused(read, file)
    assert found in error.found, str(error)
    assert error.where.startswith(f"{file}:")


def test_groups_with_many_ways_to_a_host(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(deep(60))
    began = time.process_time()
    assert len(read(file).hosts["host"].groups) == 123
    assert within(time.process_time() - began, BOUND_S)


@pytest.mark.parametrize("value", ["(" * 3000, "-" * 3000 + "1", "[" * 4000, "{" * 3000, "9" * 4000 + "**9"])
def test_a_value_of_an_ini_file_that_is_no_literal_is_a_text(tmp_path: Path, value: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"h a='{value}'\n")
    assert read(file).hosts["h"].variables["a"] == value


@pytest.mark.parametrize("folder", ["inventory", "host_vars/h", "group_vars/all"])
def test_a_link_to_its_own_folder(tmp_path: Path, folder: str) -> None:
    """Two such links double the paths on each of 40 levels."""
    inventory = tmp_path / "inventory"
    (tmp_path / "inventory").mkdir()
    (inventory / "hosts").write_text("h\n")
    looped = inventory if folder == "inventory" else inventory / folder
    looped.mkdir(parents=True, exist_ok=True)
    for name in ("one", "two"):
        (looped / name).symlink_to(looped)
    assert "inside each other" in refused(read, inventory).found


def test_a_pipe_is_no_file_of_variables(tmp_path: Path) -> None:
    """Nothing is ever written to the pipe, so a reader would wait for ever."""
    (tmp_path / "hosts").write_text("h\n")
    (tmp_path / "host_vars").mkdir()
    os.mkfifo(tmp_path / "host_vars" / "h")
    assert refused(read, tmp_path).found == "is no file"


EXPRESSIONS = [
    "(" * 3000 + "1" + ")" * 3000,
    "not " * 3000 + "1",
    "1" + "+1" * 20_000,
    "x" + ".x" * 20_000,
    "9" * 60_000,
    "range(10**9)",
    "values.append(1)",
    "values.__class__",
    "'{0.__class__}'.format(values)",
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=[text[:30] for text in EXPRESSIONS])
def test_an_expression_is_refused(expression: str) -> None:
    values = {"values": [1], "x": {}}
    assert refused(rendering.evaluate, expression, values, "hosts.yml:7").where == "hosts.yml:7"
    for text in ("{{ " + expression + " }}", "a{{ " + expression + " }}"):
        assert refused(fill, [text], values, "hosts.yml:7").where.startswith("hosts.yml:7")
    assert values["values"] == [1]


TEMPLATES = {
    "blocks in blocks": "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
    "a macro without an end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a loop without an end": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_refused(name: str, tmp_path: Path) -> None:
    refused(rendering.render_text, TEMPLATES[name], {}, "hosts.yml:7")
    file = tmp_path / "file.j2"
    file.write_text("first line\n" + TEMPLATES[name])
    assert refused(render_file, file, {}).where.startswith(f"{file}:")


def test_texts_that_contain_each_other_twice() -> None:
    """Five rounds would make 2 ** 32 copies."""
    variables = {"a": "{{ b }}{{ b }}", "b": "{{ a }}{{ a }}"}
    error = refused(settled, variables, "hosts.yml", {"a": "hosts.yml:1", "b": "hosts.yml:2"})
    assert (error.where, error.found) == ("hosts.yml:1", "more than 64 KiB of template")


@pytest.mark.parametrize("levels", [1, 60])
def test_lists_that_contain_each_other(levels: int) -> None:
    """With 60 levels the value of the last round is deeper than Python's stack."""
    a: Any = "{{ b }}"
    b: Any = "{{ a }}"
    for _ in range(levels):
        a, b = [a], [b]
    error = refused(settled, {"a": a, "b": b}, "hosts.yml")
    assert error.found == "the variable 'a' refers to itself"


def test_templates_as_people_write_them() -> None:
    values = {"names": ["b", "a"], "port": 22, "limits": {"gpus": {"a": 1}}, "text": "a\nb"}
    for template, wanted in {
        "{% for n in names|sort %}{{ loop.index }}/{{ loop.length }}={{ n }}{{ ',' if not loop.last }}{% endfor %}":
            "1/2=a,2/2=b",
        "{{ names|join(', ') }} {{ '%05.1f'|format(2.5) }} {{ '%s:%d' % ('a', port) }}": "b, a 002.5 a:22",
        "{{ text|indent(4, true) }}|{{ text|replace('a', 'c') }}": "    a\n    b|c\nb",
        "{{ limits.gpus.items()|list }} {{ limits|tojson }}": "[('a', 1)] {\"gpus\": {\"a\": 1}}",
        "{{ '-' * 10 }}{{ [1] + [2] }}{{ 2 ** 10 }} {{ names|map('upper')|list }}": "----------[1, 2]1024 ['B', 'A']",
        "{{ '{:>5}|{x}'.format(port, x=1) }}{{ ', '.join(names) }}{{ 'a'.center(5) }}": "   22|1b, a  a  ",
        "{% for a in names recursive %}{{ a }}{% else %}none{% endfor %}{{ names|batch(2, 'x')|list }}":
            "ba[['b', 'a']]",
        "{% for k, v in limits.gpus.items() if v %}{{ k ~ '=' ~ v }}{% endfor %}{{ [1.26]|sum|round(1) }}": "a=11.3",
    }.items():  # fmt: skip
        assert rendering.render_text(template, values, "x") == wanted, template


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_file_of_ssh_that_has_no_end(kind: str, tmp_path: Path) -> None:
    """The inventory names a key file and a file of known hosts."""
    file = tmp_path / "file"
    file.symlink_to("/dev/zero") if kind == "device" else os.mkfifo(file)
    program = (
        "import resource, sys; from pathlib import Path; from rigwright.ssh import identities, known_hosts\n"
        "file = Path(sys.argv[1]); resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "print(identities.public_key(file), list(known_hosts.records_of(file, 'host')))"
    )
    argv = [sys.executable, "-c", program, str(file)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert (done.stdout, done.returncode) == ("b'' []\n", 0), done.stderr

"""YAML with line numbers: an error has file and line, the value found and the value expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigwright.core.errors import InputError
from rigwright.core.yaml_source import Mapping, Sequence, did_you_mean, load, loads, only_keys


def refused(text: str) -> InputError:
    """Returns the error of a document."""
    with pytest.raises(InputError) as caught:
        loads(text, "x.yml")
    return caught.value


def test_everything_knows_where_it_stands() -> None:
    found = loads("# a comment\na: 1\nb:\n  c: 2\n\n  d: [x,\n    y]\n", "x.yml")
    assert isinstance(found, Mapping)
    assert (found.where(), found.where("a"), found.where("b")) == ("x.yml:2", "x.yml:2", "x.yml:3")
    assert (found["b"].where("c"), found["b"].where("d")) == ("x.yml:4", "x.yml:6")
    assert isinstance(found["b"]["d"], Sequence)
    assert (found["b"]["d"].where(0), found["b"]["d"].where(1)) == ("x.yml:6", "x.yml:7")
    assert found.where("no such key") == "x.yml:2"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# only a comment\n", None),
        ("---\n", None),
        ("a:\n", {"a": None}),
        ("a: '0644'\n", {"a": "0644"}),
        ("a: 0644\n", {"a": 420}),
        ("a: yes\n", {"a": True}),
        ("'on': yes\n", {"on": True}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("a: &x [1]\nb: *x\n", {"a": [1], "b": [1]}),
        ("\ufeffa: 1\n", {"a": 1}),
        ("a: 'é'\r\nb: 2\r\n", {"a": "é", "b": 2}),
        ("- 1\n- [2]\n", [1, [2]]),
        ("just words\n", "just words"),
    ],
)
def test_values(text: str, value: object) -> None:
    assert loads(text, "x.yml") == value


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("a: [1,\nb: 2\n", 2, "did not find"),
        ("a: 'x\n", 1, "unexpected end of stream"),
        ("a: b: c\n", 1, "mapping values are not allowed"),
        ("a: *b\n", 1, "undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("a: @x\n", 1, "cannot start any token"),
        ("a: 1\n b: 2\n", 2, ""),
    ],
)
def test_what_is_no_yaml(text: str, line: int, found: str) -> None:
    error = refused(text)
    assert error.where.startswith("x.yml:")
    assert abs(int(error.where.partition(":")[2]) - line) <= 1
    assert found in error.found
    assert error.expected


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' a second time (first in line 1)"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4, "the key 'b' a second time (first in line 2)"),
        ("a:\n\tb: 1\n", 2, "a tab"),
        ("a:\n  - b\n\t- c\n", 3, "a tab"),
        ("x:\n  y: !vault z\n", 2, "the tag !vault, which rigwright cannot read"),
        ("a: 1\nb: !include x\n", 2, "the tag !include"),
        ("a: 1\nb: !!python/object/apply:os.system x\n", 2, "the tag !!python/object/apply:os.system"),
        ("base: &base {a: 1}\nmore:\n  <<: *base\n", 3, "the merge key <<"),
        ("? [a, b]\n: c\n", 1, "a key that is a list or a mapping"),
    ],
)
def test_what_rigwright_refuses_is_named_by_its_very_line(text: str, line: int, found: str) -> None:
    error = refused(text)
    assert error.where == f"x.yml:{line}"
    assert error.found.startswith(found)
    assert ("into a variable of the inventory" in error.fix) == ("!vault" in text)


@pytest.mark.parametrize(
    ("key", "read_as"),
    [
        ("on", "True"),
        ("yes", "True"),
        ("off", "False"),
        ("No", "False"),
        ("535", "535"),
        ("1.5", "1.5"),
        ("null", "None"),
        ("~", "None"),
    ],
)
def test_a_key_that_yaml_reads_as_no_text(key: str, read_as: str) -> None:
    error = refused(f"a: 1\n{key}: 2\n")
    assert error.where == "x.yml:2"
    assert error.found == f"the key {read_as}, which YAML reads as no text"
    assert error.expected == f"'{key}' in quotes"


def test_a_file_is_named_also_if_it_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.write_text("a: 1\na: 2\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.where == f"{path}:2"
    with pytest.raises(InputError) as caught:
        load(path, "shown.yml")
    assert caught.value.where == "shown.yml:2"
    latin = tmp_path / "latin.yml"
    latin.write_bytes("a: gr\xfc\xdfe\n".encode("latin-1"))
    for path in (tmp_path / "absent.yml", tmp_path, latin):
        with pytest.raises(InputError) as caught:
            load(path)
        assert caught.value.where == str(path)
        assert "cannot be read" in caught.value.found


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("limts", "; did you mean 'limits'?"),
        ("Limits", "; did you mean 'limits'?"),
        ("dirver", "; did you mean 'driver'?"),
        ("completely_else", ""),
        ("", ""),
    ],
)
def test_the_nearest_word(word: str, hint: str) -> None:
    assert did_you_mean(word, ["limits", "driver", "cuda"]) == hint


def test_an_unknown_key() -> None:
    document = loads("name: x\nhots: gpu\n", "play.yml")
    only_keys(document, ("name", "hots"), "key of a play")
    with pytest.raises(InputError) as caught:
        only_keys(document, ("name", "hosts", "tasks"), "key of a play")
    assert str(caught.value) == (
        "play.yml:2: unknown key of a play 'hots'; did you mean 'hosts'?\n  expected: one of hosts, name, tasks"
    )

"""The inventory variable `containers`: one message for each mistake, with its line."""

from __future__ import annotations

import pytest

from rigwright.core.errors import InputError
from rigwright.core.schema import convert
from rigwright.core.yaml_source import loads
from rigwright.features.containers.variables import Containers


def made(text: str) -> Containers:
    """Returns the containers of a YAML text."""
    found = convert(loads(text, "host.yml"), Containers, "host.yml", "containers")
    assert isinstance(found, Containers)
    return found


def test_engines_of_both() -> None:
    assert made("engine: both") == Containers("both", "latest", "")
    assert made("engine: both").engines == ("podman", "docker")
    assert made("engine: docker\ntoolkit: '1.18.1'").engines == ("docker",)


@pytest.mark.parametrize(
    ("text", "where", "found", "expected"),
    [
        ("toolkit: latest", "host.yml:1", "'containers' lacks engine", "{engine: ...,"),
        ("engine: podmann", "host.yml:1", "'containers.engine' is 'podmann'; did you mean 'podman'?", "docker, podman"),
        ("engine: podman\ntoolkit: 1.18", "host.yml:2", "'containers.toolkit' is 1.18", "in quotes"),
        ("engine: podman\ntoolkit: '1.18'", "host.yml:1", "toolkit '1.18'", "'1.18.1'"),
        ("engine: podman\ntoolkit: 1.18.1-1", "host.yml:1", "toolkit '1.18.1-1'", "latest, or a release"),
        ("engine: podman\ntoolkit: '1.18.1\n\n    Pin: x'", "host.yml:1", "toolkit '1.18.1", "latest, or a release"),
        ("engine: podman\ntolkit: latest", "host.yml:2", "'tolkit'; did you mean 'toolkit'?", "engine, image, toolkit"),
        ("engine: podman\nimage: '--privileged x'", "host.yml:1", "image '--privileged x'", "without spaces"),
        ("[podman]", "host.yml", "'containers' is ['podman']", "{engine: ..."),
    ],
)
def test_one_message_for_each_mistake(text: str, where: str, found: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        made(text)
    assert found in caught.value.found
    assert expected in caught.value.expected + caught.value.found
    assert caught.value.where == where

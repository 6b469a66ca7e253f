"""The inventory variable `guard`: short forms, one message for each mistake, and an address that is never shown."""

from __future__ import annotations

from typing import Any

import pytest

from rigwright.core.command import Result
from rigwright.core.errors import HostError, InputError
from rigwright.core.schema import convert
from rigwright.core.secrets import Secret, holds, redacted
from rigwright.core.yaml_source import loads
from rigwright.facts import FactStore, Missing, parsed
from rigwright.features.guard.operations import CONFIG, installed
from rigwright.features.guard.variables import Guard, Heat, Turns

CANARY = "https://hooks.example/canary-8821"


def made(text: str) -> Guard:
    """Returns the guard of a YAML text."""
    found = convert(loads(text, "host.yml"), Guard, "host.yml", "guard")
    assert isinstance(found, Guard)
    return found


def test_the_defaults_lower_the_limit_and_nothing_else() -> None:
    guard = made("{}")
    assert guard == Guard()
    assert guard.document() == {
        "thresholds": {"gpu_temperature_c": {"for_s": 10}, "memory_temperature_c": {"for_s": 10}},
        "steps": ["lower-limit"],
        "step_s": 60,
        "notify": {},
    }


def test_a_number_stands_for_a_threshold() -> None:
    guard = made("gpu_temperature_c: 90\nmemory_temperature_c: {above: 99.5, for_s: 20}\nfan_rpm_min: 500\n")
    assert (guard.gpu_temperature_c, guard.memory_temperature_c, guard.fan_rpm_min) == (
        Heat(90), Heat(99.5, 20), Turns(500),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("gpu_temperature: 90", "unknown key of 'guard' 'gpu_temperature'", "gpu_temperature_c"),
        ("gpu_temperature_c: 255", "above 255", "40 to 120 degrees"),
        ("gpu_temperature_c: 115", "gpu_temperature_c 115", "40 to 110 degrees"),
        ("gpu_temperature_c: hot", "'guard.gpu_temperature_c' is 'hot'", "a number"),
        ("gpu_temperature_c: [90]", "'guard.gpu_temperature_c' is [90]", "{above: ..., for_s: ...}"),
        ("gpu_temperature_c: {below: 90}", "'below'", "above"),
        ("memory_temperature_c: {above: 100, for_s: 0}", "for_s 0", "1 to 600 seconds"),
        ("fan_rpm_min: 5", "below 5", "50 to 30000 turns"),
        ("fan_rpm_min: {for_s: 5}", "lacks below", "{below: ..., for_s: ...}"),
        ("steps: [power-off, lower-limit]", "steps ['power-off', 'lower-limit']", "in this order"),
        ("steps: [lower-limit, lower-limit]", "steps ['lower-limit', 'lower-limit']", "each once"),
        ("steps: [poweroff]", "'poweroff'", "power-off"),
        ("steps: power-off", "'guard.steps' is 'power-off'", "a list"),
        ("step_s: 0", "step_s 0", "1 to 3600 seconds"),
        ("lower_limit_w: 0", "lower_limit_w 0", "watts of one GPU"),
        ("lower_limit_w: 150\nsteps: []", "no step lower-limit", "lower-limit in steps"),
        ("stop: [training.service]", "stop names units, and no step is `stop`", "both"),
        ("steps: [stop]", "`stop` names no unit", "both"),
        ("steps: [stop]\nstop: [training]", "stop: 'training'", "with their suffix"),
        ("steps: [stop]\nstop: [--now.service]", "stop: '--now.service'", "with their suffix"),
        ("steps: [stop]\nstop: [gpu-guard.service]", "gpu-guard.service", "units of systemd"),
        ("notify: {webhook: hooks.example}", "webhook is no address", "https://"),
        ("notify: {mail: -t}", "mail '-t'", "an address or a user"),
        ("notify: {command: tell}", "'tell' is no path from the root", "a path that begins with /"),
        ("notify: {sms: 1}", "'sms'", "command"),
        ("textfile: /a/b.txt", "textfile '/a/b.txt'", ".prom"),
        ("textfile: /a b/c.prom", "textfile '/a b/c.prom'", ".prom"),
    ],
)
def test_a_mistake_is_one_message_with_its_line(text: str, found: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        made(f"{text}\n")
    assert caught.value.where.startswith("host.yml")
    assert found in caught.value.found
    assert expected in f"{caught.value.expected} {caught.value.found}"


def test_an_address_is_a_secret_also_where_it_is_not_marked_as_one() -> None:
    guard = made(f"notify: {{webhook: '{CANARY}'}}\n")
    assert guard.document()["notify"] == {"webhook": CANARY}
    assert redacted(f"got {CANARY}") == "got (secret)"


def changes(guard: Guard) -> list[Any]:
    """Returns the changes on a host without any file of the guard."""
    store = FactStore()
    for _ in range(9):
        try:
            return list(installed(store, guard=guard))
        except Missing as wanted:
            for fact in wanted.facts:
                text = "absent\n"
                if fact.name.startswith("systemd.unit"):
                    text = "LoadState=not-found\nActiveState=inactive\nSubState=dead\nNeedDaemonReload=no\n"
                elif fact.name.startswith("systemd.running"):
                    text = "ActiveState=inactive\nNeedDaemonReload=no\nActiveEnterTimestampMonotonic=0\nnow=9\nup=9\n"
                store.known[fact] = parsed(fact, Result(0, text.encode()))
    raise AssertionError("facts that never settle")


def test_a_secret_address_is_written_on_the_host_and_in_no_change() -> None:
    values = {"notify": {"webhook": Secret(lambda: f"{CANARY}\n")}}
    guard = convert(values, Guard, "host.yml", "guard")
    (config,) = [change for change in changes(guard) if change.subject == CONFIG]
    assert config.after == "(secret), mode 0600"
    assert CANARY.encode() in config.commands[0].stdin
    assert CANARY not in str(config)
    assert CANARY not in repr(guard)
    assert holds({"guard": guard}), "so no worker gets it"
    assert not holds({"guard": Guard()})


def test_a_secret_that_is_no_address_is_refused_without_showing_it() -> None:
    guard = convert({"notify": {"webhook": Secret("canary-8822")}}, Guard, "host.yml", "guard")
    with pytest.raises(HostError, match="the secret is no address") as caught:
        changes(guard)
    assert "canary" not in str(caught.value)

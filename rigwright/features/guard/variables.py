"""The inventory variable `guard` as types: thresholds, steps, and who is notified. host/guard.py acts on the host."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, get_args

from msgspec import Struct, field

from rigwright.core import lazy_re, secrets
from rigwright.core.schema import AbsolutePath, Word
from rigwright.core.secrets import Secret
from rigwright.core.yaml_source import did_you_mean

GuardStep = Literal["lower-limit", "stop", "power-off"]
STEPS: tuple[GuardStep, ...] = get_args(GuardStep)
"""The steps, in the only order in which they can be made."""

_FOR_S = (1, 600)
_UNIT = lazy_re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]{0,200}\.(service|slice|scope|target|socket|timer|mount)")
_MAIL = lazy_re.compile(r"[A-Za-z0-9._+][A-Za-z0-9._+-]{0,63}(@[A-Za-z0-9.-]{1,200})?")


def _seconds(for_s: int) -> None:
    if not _FOR_S[0] <= for_s <= _FOR_S[1]:
        raise ValueError(f"for_s {for_s}", f"{_FOR_S[0]} to {_FOR_S[1]} seconds, such as 10")


class Heat(Struct, frozen=True):
    """A temperature that must not be reached, degrees Celsius, for so many seconds. `above` None: the limit that the
    GPU itself reports."""

    SHORT: ClassVar[str] = "above"
    above: float | None = None
    for_s: int = 10

    def __post_init__(self) -> None:
        if self.above is not None and not 40 <= self.above <= 120:
            raise ValueError(f"above {self.above:g}", "40 to 120 degrees Celsius, such as 90")
        _seconds(self.for_s)


class Turns(Struct, frozen=True):
    """The turns in a minute that a fan must have, and the seconds that it may lack them. A fan is read each ten
    seconds."""

    SHORT: ClassVar[str] = "below"
    below: int
    for_s: int = 30

    def __post_init__(self) -> None:
        if not 50 <= self.below <= 30000:
            raise ValueError(f"below {self.below}", "50 to 30000 turns in a minute, such as 500")
        _seconds(self.for_s)


class Notify(Struct, frozen=True):
    """Who is notified. `command`: a program on the host; `webhook`: an address that gets a POST, always treated as a
    secret; `mail`: a recipient for the host's own sendmail."""

    command: AbsolutePath | None = None
    webhook: str | Secret = ""
    mail: str = ""

    def __repr__(self) -> str:
        return f"Notify({self.command!r}, {self.mail!r})"  # the webhook is a secret

    def __post_init__(self) -> None:
        if isinstance(self.webhook, str) and self.webhook:
            if not re.fullmatch(r"https?://[^\s]{1,2000}", self.webhook):
                raise ValueError("webhook is no address", "https://... or http://..., in one word")
            secrets.learn(self.webhook)
        if self.mail and not _MAIL.fullmatch(self.mail):
            raise ValueError(f"mail '{self.mail}'", "an address or a user of the host, such as root")


class Guard(Struct, frozen=True):
    """What gpu-guard.service watches, and what it does. The defaults lower the power limit and do nothing else.

    `step_s`: seconds that a threshold must hold on after a step before the next. `lower_limit_w`: None for the lowest
    of each GPU.
    """

    gpu_temperature_c: Heat = Heat()
    memory_temperature_c: Heat = Heat()
    fan_rpm_min: Turns | None = None
    steps: tuple[GuardStep, ...] = ("lower-limit",)
    step_s: int = 60
    lower_limit_w: int | None = None
    stop: tuple[Word, ...] = ()
    notify: Notify = field(default_factory=Notify)
    textfile: AbsolutePath | None = None

    def __post_init__(self) -> None:
        if (above := self.gpu_temperature_c.above) is not None and above > 110:
            raise ValueError(f"gpu_temperature_c {above:g}", "40 to 110 degrees Celsius, such as 90")
        if list(self.steps) != [step for step in STEPS if step in self.steps]:
            raise ValueError(f"steps {list(self.steps)}", f"of {', '.join(STEPS)}, in this order and each once")
        if not 1 <= self.step_s <= 3600:
            raise ValueError(f"step_s {self.step_s}", "1 to 3600 seconds, such as 60")
        if self.lower_limit_w is not None and not 0 < self.lower_limit_w <= 2000:
            raise ValueError(f"lower_limit_w {self.lower_limit_w}", "watts of one GPU, such as 150")
        if self.lower_limit_w is not None and "lower-limit" not in self.steps:
            raise ValueError("lower_limit_w, and no step lower-limit", "lower-limit in steps")
        for unit in self.stop:
            if not _UNIT.fullmatch(unit) or unit == "gpu-guard.service":
                problem = f"stop: '{unit}'{did_you_mean(unit, [f'{unit}.service'])}"
                raise ValueError(problem, "units of systemd with their suffix, such as training.service")
        if bool(self.stop) != ("stop" in self.steps):
            problem = "a step `stop`, and `stop` names no unit"
            if self.stop:
                problem = "stop names units, and no step is `stop`"
            raise ValueError(problem, "both: steps: [lower-limit, stop], stop: [training.service]")
        if self.textfile is not None and not re.fullmatch(r"/[A-Za-z0-9._/+-]{1,200}\.prom", self.textfile):
            expected = "a path of letters, digits and ._/+- that ends with .prom, as node_exporter wants it"
            raise ValueError(f"textfile '{self.textfile}'", expected)

    def document(self) -> dict[str, Any]:
        """guard.json, which the program on the host reads. It has the webhook's address in plain text. Raises what the
        source of a secret raises."""
        thresholds: dict[str, dict[str, float]] = {}
        for name in ("gpu_temperature_c", "memory_temperature_c"):
            heat = getattr(self, name)
            thresholds[name] = {"for_s": heat.for_s, **({} if heat.above is None else {"above": heat.above})}
        if self.fan_rpm_min is not None:
            thresholds["fan_rpm_min"] = {"below": self.fan_rpm_min.below, "for_s": self.fan_rpm_min.for_s}
        webhook = self.notify.webhook
        told = {
            "command": self.notify.command,
            "webhook": webhook.reveal().strip() if isinstance(webhook, Secret) else webhook,
            "mail": self.notify.mail,
        }
        others = {"lower_limit_w": self.lower_limit_w, "stop": list(self.stop), "textfile": self.textfile}
        return {
            "thresholds": thresholds,
            "steps": list(self.steps),
            "step_s": self.step_s,
            "notify": {name: value for name, value in told.items() if value},
            **{name: value for name, value in others.items() if value},
        }


Metrics = Literal["textfile"]
"""How Prometheus gets the GPUs' metrics: by node_exporter's textfile collector."""

TYPES = {"guard": Guard, "metrics": Metrics}

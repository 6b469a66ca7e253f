"""Templates of the files that rigwright writes to hosts.

An owner's template replaces the shipped template of the same name in templates/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes
from msgspec import Struct, field

from rigwright.core import secrets, yaml_source
from rigwright.core.errors import HostError, InputError
from rigwright.core.files import shipped_files
from rigwright.core.templates.rendering import environment, render_text
from rigwright.core.templates.variables import require_inside
from rigwright.core.yaml_source import did_you_mean

Values = Mapping[str, Any]


class HostFile(Struct, frozen=True):
    """A file on a host that is rendered from a template. `example` has a value for each variable of the template.

    `essential`: texts that the file must contain outside comments, as it has no effect without them. `{NAME}` in a text
    is a value; a text that is the name of a list stands for all its items. `part`: it is a block of a file that an
    owner may have.
    """

    path: str
    example: Values
    essential: tuple[str, ...]
    part: bool = False

    def essential_texts(self, values: Values) -> Iterator[str]:
        """The essential texts of a file that is rendered with these values."""
        for text in self.essential:
            if text == "pins":
                for pin in values[text]:
                    words = " ".join(pin["packages"])
                    yield f"Package: {words}\nPin: {pin['pin']}\nPin-Priority: {pin['priority']}"
            elif text in self.example:
                yield from values[text]
            else:
                yield text.format(**values)


_PINS = [
    {"packages": ["nvidia-driver-535", "libnvidia-compute-535"], "pin": "version 535.183.01*", "priority": 1001},
    {"packages": ["cuda-drivers*"], "pin": "version *", "priority": -1},
]
_SOURCE = {
    "option": "signed-by=/usr/share/keyrings/rigwright-cuda.asc",
    "url": "https://example.org/cuda",
    "suite": "/",
    "components": [],
}
_PROGRAM = {"program": "/usr/local/lib/rigwright/gpu_limits.py", "config": "/etc/rigwright/limits.json"}
_MIG = {"program": "/usr/local/lib/rigwright/gpu_mig.py", "config": "/etc/rigwright/mig.json"}
_GUARD = {
    "program": "/usr/local/lib/rigwright/guard.py",
    "config": "/etc/rigwright/guard.json",
    "metrics": "/var/lib/prometheus/node-exporter",
}
_HOME = {"home": "/usr/local/cuda-12.2"}
_TRIAL = {
    "run": "20261122-190200-ab127c05",
    "default": "0",
    "fallback": "menuentry 'before' --id rigwright-fallback {\n    linux /vmlinuz ro quiet\n}",
    "trial": "menuentry 'trial' --id rigwright-trial {\n    linux /vmlinuz ro\n}",
}
_CONTINUE = {
    "folder": "/var/lib/rigwright/continuation",
    "log": "/var/log/rigwright-continue.log",
    "motd": "/etc/motd.d/rigwright",
    "unit": "rigwright-continue.service",
    "program": "/etc/rigwright/continue.sh",
    "most_boots": 3,
    "wait_s": 200,
    "run": "20261122-190200-ab127c05",
    "directory": "/home/ubuntu/rigwright",
    "command": "runuser -u ubuntu -- .venv/bin/invoke provision --yes",
    "title": "provision of localhost",
}
_UNITS = "/etc/systemd/system"
_BLACKLIST = "Unattended-Upgrade::Package-Blacklist"

HOST_FILES: dict[str, HostFile] = {
    "apt/pin.j2": HostFile("/etc/apt/preferences.d/rigwright-NAME", {"pins": _PINS}, ("pins",)),
    "apt/source.list.j2": HostFile("/etc/apt/sources.list.d/rigwright-NAME.list", _SOURCE, ("{option}", "{url}")),
    "apt/unattended.conf.j2": HostFile(
        "/etc/apt/apt.conf.d/51rigwright-unattended", {"patterns": ["nvidia", "libnvidia"]}, (_BLACKLIST, "patterns")
    ),
    "cuda/ld.so.conf.j2": HostFile("/etc/ld.so.conf.d/rigwright-cuda.conf", _HOME, ("{home}",)),
    "cuda/profile.sh.j2": HostFile("/etc/profile.d/rigwright-cuda.sh", _HOME, ("{home}/bin",)),
    "grub/cmdline.cfg.j2": HostFile(
        "/etc/default/grub.d/zz-rigwright.cfg",
        {"kernel_cmdline": ["iommu=pt", "pci=realloc"]},
        ("GRUB_CMDLINE_LINUX_DEFAULT", "kernel_cmdline"),
    ),
    "grub/trial.cfg.j2": HostFile(
        "/boot/grub/custom.cfg", _TRIAL, ("load_env next_entry", "{fallback}", "{trial}"), part=True
    ),
    "limits/login.conf.j2": HostFile(
        "/etc/security/limits.d/90-rigwright.conf",
        {"limits": {"memlock": "unlimited", "nofile": 1048576}},
        ("root", "limits"),
    ),
    "limits/services.conf.j2": HostFile(
        "/etc/systemd/system.conf.d/90-rigwright.conf",
        {"limits": {"DefaultLimitMEMLOCK": "infinity", "DefaultLimitNOFILE": 1048576}},
        ("[Manager]", "limits"),
    ),
    "memory/sysctl.conf.j2": HostFile(
        "/etc/sysctl.d/90-rigwright-hugepages.conf", {"count": 1024}, ("vm.nr_hugepages = {count}",)
    ),
    "memory/tmpfiles.conf.j2": HostFile(
        "/etc/tmpfiles.d/rigwright-hugepages.conf",
        {"mode": "madvise"},
        ("w /sys/kernel/mm/transparent_hugepage/enabled - - - - {mode}",),
    ),
    "modprobe/blocked.conf.j2": HostFile(
        "/etc/modprobe.d/rigwright-blocked.conf", {"modules": ["nouveau", "nova_core"]}, ("modules",)
    ),
    "modprobe/display.conf.j2": HostFile(
        "/etc/modprobe.d/rigwright-display.conf", {}, ("options nvidia-drm modeset=1",)
    ),
    "systemd/cpu-governor.service.j2": HostFile(
        f"{_UNITS}/cpu-governor.service", {"governor": "performance"}, ("echo {governor} >", "scaling_governor")
    ),
    "systemd/gpu-guard.service.j2": HostFile(
        f"{_UNITS}/gpu-guard.service", _GUARD, ("{program} run", "{config}", "StateDirectory=rigwright/guard")
    ),
    "systemd/gpu-limits.service.j2": HostFile(
        f"{_UNITS}/gpu-limits.service", _PROGRAM, ("{program} apply", "{config}")
    ),
    "systemd/gpu-mig.service.j2": HostFile(f"{_UNITS}/gpu-mig.service", _MIG, ("{program} apply", "{config}")),
    "systemd/gpu-limits-watch.service.j2": HostFile(
        f"{_UNITS}/gpu-limits-watch.service", _PROGRAM, ("{program} watch", "{config}")
    ),
    "systemd/gpu-limits.timer.j2": HostFile(f"{_UNITS}/gpu-limits.timer", {}, ("gpu-limits-watch.service",)),
    "continuation/run.sh.j2": HostFile(
        "/etc/rigwright/continue.sh", _CONTINUE, ("{command}", "/run/rigwright/continues", "{most_boots}")
    ),
    "systemd/rigwright-continue.service.j2": HostFile(
        f"{_UNITS}/rigwright-continue.service", {"program": "/etc/rigwright/continue.sh"}, ("{program}", "Type=exec")
    ),
    "systemd/rigwright-trial.service.j2": HostFile(
        f"{_UNITS}/rigwright-trial.service",
        {"program": "/etc/rigwright/trial-watch.sh", "limit_s": 600},
        ("{program} watch {limit_s}", "DefaultDependencies=no"),
    ),
    "trial/watch.sh.j2": HostFile(
        "/etc/rigwright/trial-watch.sh",
        {"folder": "/var/lib/rigwright/trial"},
        ("dir={folder}", "systemctl reboot", "/run/rigwright/trial-healthy"),
    ),
}
"""The files on hosts by the name of the template in templates/. docs/reference/templates.md has the same table."""


class Templates(Struct, frozen=True):
    """The templates for a host. `own` maps names to path and text of the owner's templates; the others are shipped."""

    own: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def render(self, name: str, values: Values) -> str:
        """Renders the template of that name. Raises HostError with the template's file and line when this fails."""
        where, text = self.own[name] if name in self.own else (f"templates/{name}", _shipped(name))
        try:
            return _render(name, where, text, values)
        except InputError as error:
            raise HostError(error.where, error.found, error.expected, error.fix) from None


SHIPPED = Templates()


@lru_cache(maxsize=8)
def owners(folders: tuple[Path, ...]) -> Templates:
    """The templates in these folders that replace a shipped template; earlier folders have precedence.

    Renders each template with example values. Raises InputError with its file and line when that fails.
    """
    own: dict[str, tuple[str, str]] = {}
    for folder in folders:
        _check_names(folder)
    for name in HOST_FILES:
        first = next((folder for folder in folders if (folder / name).is_file()), None)
        if first is None:
            continue
        path = first / name
        require_inside(path, first, str(path))
        text = yaml_source.text(path, str(path))
        _check_variables(name, str(path), text)
        _render(name, str(path), text, HOST_FILES[name].example)
        own[name] = (str(path), text)
    return Templates(own)


@lru_cache(maxsize=len(HOST_FILES))
def _shipped(name: str) -> str:
    return (shipped_files.folder("templates") / name).read_text(encoding="utf-8")


def _check_names(folder: Path) -> None:
    """Raises InputError for a file whose name is similar to a shipped template's name but does not replace it."""
    import difflib

    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        near = next(iter(difflib.get_close_matches(name, HOST_FILES, n=1, cutoff=0.87)), "")
        if name not in HOST_FILES and near and not (folder / near).exists():
            raise InputError(
                str(path),
                f"no template of rigwright has the name '{name}'; did you mean '{near}'?",
                f"one of {', '.join(HOST_FILES)}, or a name less like them",
                f"rename it to {folder / near}, which replaces rigwright's own",
            )


def _check_variables(name: str, where: str, text: str) -> None:
    """Raises InputError for a template with a syntax error or an unknown variable."""
    known = HOST_FILES[name].example
    try:
        tree = environment().parse(text)
        unknown = jinja2.meta.find_undeclared_variables(tree) - set(known)
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"{where}:{error.lineno}", f"template error: {error.message}", "valid Jinja2") from None
    for node in tree.find_all(jinja2.nodes.Name):
        if node.name in unknown:
            raise InputError(
                f"{where}:{node.lineno}",
                f"unknown variable '{node.name}'{did_you_mean(node.name, known)}",
                f"one of {', '.join(known)}" if known else "no variable: this template gets none",
                "docs/reference/templates.md lists the variables of each template",
            )


class _ByText(Struct, frozen=True, eq=False):
    """Values that are equal when their texts are: in Python 1 equals true, but a template renders them differently."""

    values: Values

    def __hash__(self) -> int:
        return hash(repr(self.values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByText) and repr(other.values) == repr(self.values)


def _render(name: str, where: str, text: str, values: Values) -> str:
    """Renders a template, once for equal values. Raises InputError if the result lacks an essential text."""
    render = _render_anew.__wrapped__ if secrets.holds(values) else _render_anew
    return render(name, where, text, _ByText(values))


@lru_cache(maxsize=256)
def _render_anew(name: str, where: str, text: str, by_text: _ByText) -> str:
    values = by_text.values
    rendered = render_text(text, values, where, lines=True)
    lines = (line.rstrip() for line in rendered.splitlines())
    effective = "\n".join(line for line in lines if not line.lstrip().startswith(("#", "//")))
    for words in HOST_FILES[name].essential_texts(values):
        if not re.search(rf"(?<![\w.-]){re.escape(words)}(?![\w.-])", effective):
            raise InputError(
                where,
                f"the rendered file lacks {words!r}",
                f"{words!r} outside comments: without it {HOST_FILES[name].path} has no effect",
                "restore it, or delete this template to use the shipped one",
            )
    return rendered

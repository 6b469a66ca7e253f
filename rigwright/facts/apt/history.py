"""apt's past changes on this machine, from its history.log."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from rigwright.core import host_text
from rigwright.core.command import Result, script
from rigwright.facts import Fact


class Moved(Struct, frozen=True):
    """A package that apt changed from version `before` ("": new) to `version` ("": removed), `at` a time of the host's
    clock. `by`: the command and the user."""

    at: str
    by: str
    name: str
    before: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.before or 'new'} -> {self.version or 'removed'} on {self.at} by {self.by}"


_SCRIPT = """
cd /var/log/apt 2>/dev/null || exit 0
for file in $(ls -tr history.log.*.gz history.log 2>/dev/null | tail -4); do
  case $file in *.gz) zcat "$file";; *) cat "$file";; esac
done
"""
_ACTIONS = ("Install", "Upgrade", "Downgrade", "Reinstall", "Remove", "Purge")
_LIBRARIES = ("libnvidia-compute", "libnvidia-ml1", "libcuda1")
_KERNELS_AND_CUDA = ("cuda-drivers", "libcuda1", "linux-image", "linux-modules")


def _moved(result: Result) -> tuple[Moved, ...]:
    changes: list[Moved] = []
    for stanza in host_text.paragraphs(result.text):
        values = dict(line.split(": ", 1) for line in stanza if ": " in line)
        if "Start-Date" not in values:
            continue
        at = " ".join(values["Start-Date"].split())
        user = f", asked by {values['Requested-By']}" if "Requested-By" in values else ""
        by = values.get("Commandline", "apt") + user
        moved = []
        for action in _ACTIONS:
            for name, versions in _packages(values.get(action, "")):
                if "nvidia" in name or name.startswith(_KERNELS_AND_CUDA):
                    words = [word.strip() for word in versions.split(",") if word.strip() != "automatic"]
                    before = words[0] if action in ("Upgrade", "Downgrade", "Remove", "Purge") else ""
                    moved.append(Moved(at, by, name, before, "" if action in ("Remove", "Purge") else words[-1]))
        changes += sorted(moved, key=lambda change: change.name.startswith(_LIBRARIES))
    return tuple(changes)


def _packages(text: str) -> Iterator[tuple[str, str]]:
    """The names and versions in `NAME:ARCHITECTURE (VERSIONS), ...`. Raises ValueError for other text."""
    for entry in text.split("), "):
        name, bracket, versions = entry.strip().partition(" (")
        if entry and not bracket:
            raise ValueError(f"{entry[:80]!r} is no package with its versions")
        yield name.partition(":")[0], versions.rstrip(")")


moved = Fact("apt_history.moved", script(_SCRIPT), _moved)
"""apt's changes of NVIDIA packages and kernels in the last four logs, oldest first; the libraries of a command last."""

"""A simulated driver without a host around it: one folder of hardware state, one of libraries to point programs at."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from lab.board import board_conf
from lab.nvml.build import build
from lab.rigfile import describe

CHECKOUT = Path(__file__).resolve().parents[2]
CACHE = CHECKOUT / ".lab" / "cache"


@dataclass(frozen=True)
class Bare:
    """What sees `env()` sees the GPUs of `hardware`."""

    hardware: Path
    libraries: Path

    def env(self) -> dict[str, str]:
        """The environment of a program that is to find this driver."""
        found = {"NVMLSIM_DIR": str(self.hardware), "LD_LIBRARY_PATH": str(self.libraries)}
        return {**os.environ, **found, "LC_ALL": "C"}

    def put(self, **values: object) -> None:
        """Lines for volatile/state; `__` stands for a dot, and an empty value takes the key back."""
        with self._locked(), self._state.open("a") as file:
            file.writelines(f"{key.replace('__', '.')}={value}\n" for key, value in values.items())

    def kept(self) -> dict[str, str]:
        """What volatile/state holds."""
        lines = self._state.read_text().splitlines() if self._state.exists() else []
        return dict(line.split("=", 1) for line in lines)

    def load_driver(self, version: str) -> None:
        """As modprobe does: settings of an earlier load are gone. `none` is what rmmod leaves.

        The files of clients and contexts are there before the first client, who may be an ordinary user.
        """
        self._state.parent.mkdir(parents=True, exist_ok=True)
        for path in (self._state.parent / name for name in ("clients", "contexts")):
            path.touch()
            path.chmod(0o666)
        self.put(driver__loaded=version, driver__instance=time.time_ns())

    def cut_power(self) -> None:
        """Only what lies in the GPUs' own memory is left."""
        shutil.rmtree(self.hardware / "volatile")

    @property
    def _state(self) -> Path:
        return self.hardware / "volatile" / "state"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._state.parent.mkdir(parents=True, exist_ok=True)
        with (self._state.parent / "state.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def bare(rig: str, version: str, folder: Path, cache: Path = CACHE) -> Bare:
    """The GPUs of lab/rigs/RIG.yml with that driver loaded, below `folder`, which everyone may read."""
    made = Bare(folder / "hw", folder / f"lib-{version}")
    made.hardware.mkdir(parents=True)
    library = build(version, made.libraries, cache)
    (made.libraries / "libnvidia-ml.so.1").symlink_to(library.name)
    models = {path.stem: yaml.safe_load(path.read_text()) for path in CHECKOUT.glob("rigwright/catalogue/gpus/*.yml")}
    (made.hardware / "board.conf").write_text(board_conf(describe(rig), models))
    made.load_driver(version)
    return made

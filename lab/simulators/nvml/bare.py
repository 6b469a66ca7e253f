"""A simulated driver without a host: a folder with hardware state and a folder with libraries for programs."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.hardware.board import board_conf, model
from lab.hardware.rigfile import describe
from lab.simulators.nvml.build import build

CHECKOUT = Path(__file__).resolve().parents[3]
CACHE = CHECKOUT / ".lab" / "cache"


@dataclass(frozen=True)
class Bare:
    """Programs that run with `env()` see the GPUs in `hardware`."""

    hardware: Path
    libraries: Path

    def env(self) -> dict[str, str]:
        """Returns the environment for a program that uses this driver."""
        found = {"NVMLSIM_DIR": str(self.hardware), "LD_LIBRARY_PATH": str(self.libraries)}
        return {**os.environ, **found, "LC_ALL": "C"}

    def put(self, **values: object) -> None:
        """Appends values to volatile/state. `__` in a key stands for a dot; an empty value removes the key."""
        with self._locked(), self._state.open("a") as file:
            file.writelines(f"{key.replace('__', '.')}={value}\n" for key, value in values.items())

    def kept(self) -> dict[str, str]:
        """Returns the values in volatile/state."""
        lines = self._state.read_text().splitlines() if self._state.exists() else []
        return dict(line.split("=", 1) for line in lines)

    def load_driver(self, version: str) -> None:
        """Simulates modprobe: settings of an earlier load are lost. The version `none` simulates rmmod.

        Creates the files of clients and contexts, writable for all, because the first client may be an ordinary user.
        """
        self._state.parent.mkdir(parents=True, exist_ok=True)
        for path in (self._state.parent / name for name in ("clients", "contexts", "physics")):
            path.touch()
            path.chmod(0o666)
        self.put(driver__loaded=version, driver__instance=time.time_ns())

    def pass_time(self, seconds: float) -> None:
        """Makes the next reading come that much later: the GPUs heat up or cool down as their load now makes them.

        Needs a reading before it, from which time is counted.
        """
        with (self._state.parent / "physics").open("r+b") as file:
            (tick,) = struct.unpack("<q", file.read(8))
            file.seek(0)
            file.write(struct.pack("<q", tick - round(10 * seconds)))

    def cut_power(self) -> None:
        """Simulates a power loss: deletes volatile; only nvram and board.conf stay."""
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
    """Creates the GPUs of lab/hardware/rigs/RIG.yml in `folder` with that driver loaded.

    `folder` must be readable for every user.
    """
    made = Bare(folder / "hw", folder / f"lib-{version}")
    made.hardware.mkdir(parents=True)
    library = build(version, made.libraries, cache)
    (made.libraries / "libnvidia-ml.so.1").symlink_to(library.name)
    described = describe(rig)
    models = {gpu["model"]: model(gpu["model"]) for gpu in described["gpus"]}
    (made.hardware / "board.conf").write_text(board_conf(described, models))
    made.load_driver(version)
    return made

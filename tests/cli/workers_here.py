"""Workers for `--executor` in this process: a slice is done while it is submitted, by hosts that a test simulates."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rigwright.cli import slice_command
from rigwright.cli.slice_command import SliceCommand
from rigwright.fleet import dask_workers

ADDRESS = "tcp://scheduler:8786"


class WorkersHere:
    """A worker with its files in `folder`. `orders`: the texts that it got; `answer`: what it makes of each answer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self.threads, self.lost = folder, 1, 1, ""
        self.orders: list[str] = []
        self.told: list[tuple[str, ...]] = []
        self.answer: Callable[[str], object] = str

    def submit(self, _function: object, _run: str, order: str) -> Future[Any]:
        """Does what the order says; returns a future that has ended."""
        self.orders.append(order)
        future: Future[Any] = Future()
        future.set_result(self.answer(self._answer(order)))
        return future

    def _answer(self, order: str) -> str:
        place, feed = self.folder / f"slice{len(self.orders)}", io.StringIO()
        place.mkdir(parents=True)
        command = SliceCommand(json.loads(order), place, feed)
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(command.text):
            patch.setenv("RIGWRIGHT_HISTORY", str(place / "history.sqlite"))
            patch.setattr(slice_command, "here", None)
            command.run()
        return feed.getvalue()

    def call_all(self, _function: object, *arguments: str) -> None:
        """Notes what the workers are told."""
        self.told.append(arguments)


def use(folder: Path, patch: pytest.MonkeyPatch) -> WorkersHere:
    """Gives the hosts of each command with `--executor` to a worker in this process."""
    made = WorkersHere(folder)
    patch.setattr(dask_workers, "connect", lambda *_: contextlib.nullcontext(made))
    return made

"""How long the history keeps runs, findings, values of facts and readings of GPUs, and the deletion of older ones."""

from __future__ import annotations

import os
import sqlite3

from rigwright.core import numbers

RUNS_DAYS = 400
"""Runs and old values of facts are kept for this number of days; RIGWRIGHT_HISTORY_DAYS overrides it."""
PASSED_DAYS = 30
"""The findings that are no problem are kept for this number of days."""
READINGS_DAYS = 14
"""Readings of GPUs, and runs of BY_THE_CLOCK, are kept for this number of days, which is enough for a plot. A
monitoring system may keep them longer."""
WHOLE_S = 86400
"""All readings of this time are kept; of older ones the highest values of each hour and GPU. Of older runs of
BY_THE_CLOCK the last one of each day (UTC) and host is kept."""
BY_THE_CLOCK = "fleet.report"
"""A command that may run every few minutes: of its findings only the problems are stored."""


def runs_days() -> float:
    """The value of RIGWRIGHT_HISTORY_DAYS, or RUNS_DAYS if it is not set. Raises UsageError for an invalid value."""
    setting = os.environ.get("RIGWRIGHT_HISTORY_DAYS", "")
    if not setting:
        return RUNS_DAYS
    return numbers.whole("RIGWRIGHT_HISTORY_DAYS", setting, 1, "days")


def prune_runs(database: sqlite3.Connection, now: float, before: float) -> None:
    """Deletes old runs, reports, passed findings and values of facts, and the texts to which nothing refers any more.

    Of each host its newest run and newest run of BY_THE_CLOCK are kept, the findings of the newest run, and the last
    value of each fact. Otherwise a run is deleted if it began before `before`; a run of BY_THE_CLOCK if it is older
    than READINGS_DAYS, or older than WHOLE_S and each of its hosts has a later one on the same day; passed findings if
    their run is older than PASSED_DAYS; a value of a fact if it was last seen before `before`.
    """
    day = "CAST(later.started / 86400 AS INTEGER) = CAST(run.started / 86400 AS INTEGER)"
    gone = 0
    for command, time, more in (
        ("%", before, "1"), (BY_THE_CLOCK, now - READINGS_DAYS * 86400, "1"), (BY_THE_CLOCK, now - WHOLE_S, day),
    ):  # fmt: skip
        gone += database.execute(
            "DELETE FROM run WHERE command LIKE :command AND started < :time AND " + _SUPERSEDED.format(more),
            {"command": command, "time": time},
        ).rowcount
    passed_before = {"command": "%", "time": now - PASSED_DAYS * 86400}
    old = database.execute(
        f"SELECT id FROM run WHERE whole AND started < :time AND {_SUPERSEDED.format('1')}", passed_before
    )
    for (run,) in old.fetchall():
        gone += database.execute(
            "DELETE FROM finding WHERE run = ? AND (SELECT verdict FROM saying WHERE saying.id = finding.saying) IN "
            "('pass', 'info')", (run,)
        ).rowcount  # fmt: skip
        database.execute("UPDATE run SET whole = 0 WHERE id = ?", (run,))
    if gone:
        database.execute("DELETE FROM saying WHERE NOT EXISTS (SELECT 1 FROM finding WHERE finding.saying = saying.id)")
    gone = database.execute(
        "DELETE FROM seen WHERE last_seen < ? AND EXISTS"
        " (SELECT 1 FROM seen AS later WHERE later.host = seen.host AND later.name = seen.name AND later.id > seen.id)",
        (before,),
    ).rowcount
    if gone:
        database.execute("DELETE FROM value WHERE NOT EXISTS (SELECT 1 FROM seen WHERE seen.value = value.id)")


_SUPERSEDED = """NOT EXISTS (SELECT 1 FROM outcome WHERE outcome.run = run.id AND NOT EXISTS (
    SELECT 1 FROM run AS later CROSS JOIN outcome AS newer
    WHERE later.started > run.started AND later.command LIKE :command AND {0}
      AND newer.run = later.id AND newer.host = outcome.host))"""
"""The condition that each host of a run has a later run. Mostly the first of the later runs decides."""


def prune_readings(database: sqlite3.Connection, now: float) -> None:
    """Deletes readings older than READINGS_DAYS, and keeps one for each hour and GPU of those older than WHOLE_S."""
    database.execute("DELETE FROM reading WHERE at < ?", (now - READINGS_DAYS * 86400,))
    until = (now - WHOLE_S) // 3600 * 3600
    begin = database.execute("SELECT ifnull(max(until), 0.0) FROM thinned").fetchone()[0]
    if begin > now:  # a run by a clock that was wrong
        begin = 0.0
    if until <= begin:
        return
    hours = database.execute(
        "SELECT max(at), host, gpu, max(temperature_c), round(max(power_w)) FROM reading WHERE at >= ? AND at < ?"
        " GROUP BY CAST(at / 3600 AS INTEGER), host, gpu HAVING count(*) > 1",
        (begin, until),
    ).fetchall()
    if hours:
        database.execute(
            "DELETE FROM reading WHERE at >= ? AND at < ? AND (host, gpu, "
            "CAST(at / 3600 AS INTEGER)) IN (SELECT host, gpu,"
            " CAST(at / 3600 AS INTEGER) FROM reading WHERE at >= ? AND at < ? GROUP BY 1, 2, 3 HAVING count(*) > 1)",
            (begin, until, begin, until),
        )
        database.executemany("INSERT INTO reading VALUES (?, ?, ?, ?, ?)", hours)
    database.execute("DELETE FROM thinned")
    database.execute("INSERT INTO thinned VALUES (?)", (until,))

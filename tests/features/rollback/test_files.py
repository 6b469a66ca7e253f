"""The record of a run and the way back, by this machine's shell, in a folder in place of the root of a host."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rigwright.core.change import Change
from rigwright.core.command import Command, Result, script
from rigwright.core.errors import HostError
from rigwright.engine import lease, run_record as recorder
from rigwright.facts import FactStore, Missing, run_record
from rigwright.facts.run_record import Run, State, Written, WrittenFile
from rigwright.features.rollback import operations as rollback
from rigwright.features.rollback.target import change_of, differing, obstacle, put_back, target, toward
from rigwright.operations import file
from rigwright.operations._run_recording import KEPT_RUNS

DPKG_QUERY = (
    "#!/bin/sh\nprintf '%s\\n' \"dkms	all	2.8.7	install	installed\" "
    '"libc6	amd64	2.35	hold	installed"\n'
)
PLACES = "/var/lib/rigwright /var/lib/apt/extended_states /etc/ /usr/share/ /usr/local/ /boot/ /run/".split()


class Host:
    """A folder in place of the root of a host, on which commands of runs are made."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        programs = folder / "bin"
        for made in (self.root / "etc", self.root / "var/lib", programs):
            made.mkdir(parents=True)
        (self.root / "etc/machine-id").write_text("1\n")
        scripts = {"dpkg-query": DPKG_QUERY, "dpkg": "#!/bin/sh\necho amd64\n"}
        for name, text in {**scripts, **dict.fromkeys(("systemctl", "sync"), "#!/bin/sh\n")}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.path = f"{programs}:{os.environ['PATH']}"
        self.owner = [folder.owner(), folder.group()]

    def run(self, run: str, *commands: Command) -> Result:
        """Runs commands as those of a run; returns the last result, or the first that failed."""
        result = Result(0, b"")
        for cmd in commands:
            argv = list(cmd.argv)
            for place in PLACES:
                argv = [argv[0], *(word.replace(place, f"{self.root}{place}") for word in argv[1:])]
            own = {"RIGWRIGHT_RUN": run, "RIGWRIGHT_OWNER": f"{run} u@m 1 2", "PATH": self.path, "LC_ALL": "C"}
            done = subprocess.run(argv, input=cmd.stdin, capture_output=True, env={**os.environ, **own}, check=False)
            result = Result(done.returncode, done.stdout.replace(bytes(self.root), b""), done.stderr)
            if result.code != 0:
                break
        return result

    def begins(self, run: str) -> Result:
        """The record before the first change of a run."""
        return self.run(run, *recorder.before("a step", [Change("run", "x", units=("x.service",))], first=True))

    def write(self, run: str, path: str, text: str, mode: str = "0644") -> None:
        """A run writes a file."""
        assert self.run(run, file.write(path, text.encode(), mode, *self.owner)).code == 0

    def facts(self) -> FactStore:
        """Facts of the host that are read as they are asked for."""
        host = self

        class Reading(FactStore):
            def __call__(self, fact):  # type: ignore[no-untyped-def]
                try:
                    return super().__call__(fact)
                except Missing:
                    self.learn([(fact, host.run("reading", fact.command))])
                    return super().__call__(fact)

        return Reading()

    def goes_back(self, run: str, to: str = "", most: int = 99) -> Run:
        """Makes the files what they were before a run, at most so many of them."""
        facts = self.facts()
        aim, _ = target(facts, to)
        found = differing(facts, aim)[:most]
        self.begins(run)
        for change in toward(aim, map(change_of, found)):
            assert self.run(run, *change.commands).code == 0, change
        return aim

    def __getitem__(self, path: str) -> Path:
        return self.root / path.lstrip("/")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host with a file of its owner."""
    made = Host(tmp_path)
    made["/etc/motd"].write_text("welcome\n")
    made["/etc/motd"].chmod(0o640)
    return made


def test_the_record_has_what_was_there_and_appears_when_it_is_whole(host: Host) -> None:
    assert host.begins("one").code == 0
    record = host["/var/lib/rigwright/runs/one/record"]
    assert (record / "packages").read_text() == "dkms\t2.8.7\tinstall\tinstalled\nlibc6\t2.35\thold\tinstalled\n"
    assert record.parent.parent.stat().st_mode & 0o077 == 0
    (record / "packages").write_text("another\n")
    assert host.begins("one").code == 0  # once in a run
    assert (record / "packages").read_text() == "another\n"
    (run,) = host.facts()(run_record.runs)
    assert (run.run, run.number, run.here, run.sound, run.done) == ("one", 1, True, False, False)


def test_a_host_that_cannot_be_recorded_is_not_changed(host: Host) -> None:
    host["/var/lib/rigwright"].write_text("a file in place of the folder\n")
    result = host.begins("one")
    assert result.code == 1
    assert "E: what was before this run cannot be recorded" in result.error_text


def test_files_go_back_and_forth(host: Host) -> None:
    host.begins("one")
    host.write("one", "/etc/motd", "first\n")
    host.write("one", "/etc/rigwright/limits.json", "{}\n")
    host.run("one", recorder.done())
    host.begins("two")
    host.write("two", "/etc/motd", "second\n")
    host.run("two", recorder.done())

    assert host.goes_back("three").run == "two"
    assert host["/etc/motd"].read_text() == "first\n"
    host.run("three", recorder.done())
    assert host.goes_back("four", "one").run == "one"
    assert (host["/etc/motd"].read_text(), host["/etc/motd"].stat().st_mode & 0o777) == ("welcome\n", 0o640)
    assert not host["/etc/rigwright"].exists()
    assert not host["/var/lib/rigwright/files"].exists()
    facts = host.facts()
    assert differing(facts, target(facts, "one")[0]) == []
    host.run("four", recorder.done())
    assert host.goes_back("five", "four").run == "four"
    assert host["/etc/motd"].read_text() == "first\n"
    listed = host["/var/lib/rigwright/files"].read_text().replace(str(host.root), "")
    assert listed == "/etc/motd\n/etc/rigwright/limits.json\n"


def test_after_its_end_the_same_rollback_has_the_same_aim_and_nothing_to_do(host: Host) -> None:
    host.begins("one")
    host.write("one", "/etc/motd", "first\n")
    host.run("one", recorder.done())
    assert host.goes_back("two", most=1).run == "one"  # it is cut
    assert host.goes_back("three").run == "one"
    host.run("three", recorder.done())
    facts = host.facts()
    again, since = target(facts, "")
    assert (again.run, [run.run for run in since], differing(facts, again)) == ("one", ["one", "two", "three"], [])
    for named in ("two", "three"):
        assert target(facts, named)[0].run == "two", "it is undone as a whole"
    host["/etc/motd"].write_text("by hand\n")
    facts = host.facts()
    assert differing(facts, target(facts, "")[0]) == [], "somebody's file stays"


def test_records_under_another_machine_id_are_used_once_they_are_adopted(host: Host) -> None:
    host.begins("one")
    host.write("one", "/etc/motd", "first\n")
    host.run("one", recorder.done())
    host["/etc/machine-id"].write_text("2\n")
    with pytest.raises(HostError, match="run one was recorded under another machine-id") as caught:
        target(host.facts(), "")
    assert "--adopt" in caught.value.fix
    assert host.run("adopting", recorder.adoption(["one"])).code == 0
    assert host.goes_back("two").run == "one"
    assert host["/etc/motd"].read_text() == "welcome\n"
    host["/etc/machine-id"].write_text("3\n")
    assert [run.here for run in host.facts()(run_record.runs)] == [False, False], "the disk was copied once more"


def test_a_try_is_open_until_somebody_decides(host: Host) -> None:
    change = [Change("run", "x")]
    assert host.run("one", *recorder.before("a step", change, first=True, tried="driver: 580\nx")).code == 0
    assert host.run("one", *recorder.before("another", change, first=False, tried="driver: 580")).code == 0
    assert [(run.tried, run.tried_by) for run in host.facts()(run_record.runs)] == [("driver: 580 x", "one u@m 1 2")]
    for _ in range(2):
        assert host.run("two", recorder.decision("one")).code == 0
    assert [run.tried for run in host.facts()(run_record.runs)] == [""]


def test_the_run_to_which_a_rollback_went_stays_on_record(host: Host) -> None:
    for number in range(KEPT_RUNS + 2):
        host.begins(f"run-{number:02}")
        os.utime(host[f"/var/lib/rigwright/runs/run-{number:02}"], (number, number))
    for run, to in (("run-20", "run-00"), ("run-21", "")):
        (host[f"/var/lib/rigwright/runs/{run}/record"] / "to").write_text(f"{to}\n")
    host["/var/lib/rigwright/lease"].write_text("me\n")
    released = script(lease._RELEASE.replace("held; [", "owner=me; ["), "me")
    assert host.run("run-21", released).code == 0
    left = [run.run for run in host.facts()(run_record.runs)]
    assert (left[0], len(left)) == ("run-00", KEPT_RUNS + 1)


def test_a_file_that_somebody_changed_since_stays(host: Host) -> None:
    host.begins("one")
    host.write("one", "/etc/new.conf", "ours\n")
    host["/etc/new.conf"].write_text("theirs\n")
    facts = host.facts()
    run, _ = target(facts, "")
    assert [file.path for file in differing(facts, run)] == ["/var/lib/rigwright/files"]
    written = {file.path: obstacle(file) for file in facts(run_record.written(run.number)).files}
    assert written["/etc/new.conf"] == "somebody changed it since: it is left as it is"


def test_a_private_file_is_in_the_record_by_its_digest_only(host: Host) -> None:
    host["/etc/token"].write_text("the old one\n")
    host["/etc/token"].chmod(0o600)
    host.begins("one")
    host.write("one", "/etc/token", "the new one\n", "0600")
    record = host["/var/lib/rigwright/runs/one/record"]
    assert not [path for path in record.rglob("*") if path.is_file() and b"the old one" in path.read_bytes()]
    (kept,) = host["/var/lib/rigwright/runs/one/before"].rglob("token")
    assert kept.stat().st_mode & 0o077 == 0
    host.goes_back("two")
    assert (host["/etc/token"].read_text(), host["/etc/token"].stat().st_mode & 0o777) == ("the old one\n", 0o600)


def test_a_link_comes_back_and_a_changed_copy_does_not(host: Host) -> None:
    host["/etc/link"].symlink_to("nowhere")
    host.begins("one")
    host.write("one", "/etc/link", "x\n")
    host.write("one", "/etc/motd", "x\n")
    (copy,) = host["/var/lib/rigwright/runs/one/before"].rglob("motd")
    facts = host.facts()
    run, _ = target(facts, "")
    found = {file.path: file for file in differing(facts, run)}
    copy.write_text("somebody wrote into the copy\n")
    result = host.run("two", put_back(found["/etc/motd"]))
    assert (result.code, "is not what the record of that run says" in result.error_text) == (1, True)
    assert host["/etc/motd"].read_text() == "x\n"
    host.goes_back("three")
    assert str(host["/etc/link"].readlink()) == "nowhere"


def test_a_cut_line_of_a_power_cut_is_no_file(host: Host) -> None:
    host.begins("one")
    with host["/var/lib/rigwright/runs/one/record/wrote"].open("a") as lines:
        lines.write("\nfile\t644\t0:0\tabc")
    host.write("one", "/etc/new.conf", "x\n")
    facts = host.facts()
    written = facts(run_record.written(1))
    assert written.unreadable == 1
    assert "/etc/new.conf" in [file.path for file in written.files]


def test_runs_are_in_the_order_of_their_numbers(host: Host) -> None:
    for name in ("z-first", "a-second"):
        host.begins(name)
    assert [run.run for run in host.facts()(run_record.runs)] == ["z-first", "a-second"]
    shutil.rmtree(host["/var/lib/rigwright/runs/z-first"])
    host.begins("third")
    assert [run.number for run in host.facts()(run_record.runs)] == [2, 3]


def test_files_that_stay_are_named_with_a_command_that_can_be_typed() -> None:
    was, now = State("file", "0644", "0:0", "1" * 64), State("file", "0644", "0:0", "2" * 64)
    files = tuple(WrittenFile(f"/etc/a b;reboot{n}", "r", was, now, "r/before", False) for n in range(25))
    run = Run("20261122-100000-aaaa", 1, "2026-11-22T10:00:05Z", here=True, sound=True, done=True)
    store = FactStore({run_record.runs: (run,), run_record.written(1): Written(files), run_record.pending: frozenset()})
    notes = [note.text for note in rollback.possible(store)]
    assert len(notes) == 22
    before = "/var/lib/rigwright/runs/r/before"
    assert notes[1].endswith(f"; sudo cp -a '{before}/etc/a b;reboot0' '/etc/a b;reboot0' puts it back")
    assert notes[-1] == "5 more files cannot go back, for the same reasons"

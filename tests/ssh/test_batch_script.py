"""The scripts of `rigwright.ssh.batch_script`, run by a real `sh`, return the exact output of every command."""

from __future__ import annotations

import base64
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from rigwright.core.command import Command, Result, command, script, state_of
from rigwright.core.errors import HostError
from rigwright.core.host_folders import UNTIL_BOOT
from rigwright.ssh import batch_script
from rigwright.ssh.batch_script import _checksum

NONCE = "rw0123456789abcdef"
SAY = 'printf %s "$1" | base64 -d; printf %s "$2" | base64 -d >&2; exit "$3"'
FORGED = (f"\n{NONCE} end\n", f"{NONCE} codes 0\n0.o 3\n{NONCE} data\nxyz\n{NONCE} end\n", "", "\n", "no newline")
outputs = st.binary(max_size=300) | st.sampled_from([b"\x00\xff\r\n", *map(str.encode, FORGED)])


def says(stdout: bytes, stderr: bytes = b"", code: int = 0, *, reads: bool = False) -> Command:
    """Returns a command that prints these bytes and exits with this code."""
    words = [base64.b64encode(one).decode() for one in (stdout, stderr)]
    return script(SAY, *words, str(code), timeout_s=20, reads=reads)


def sh(text: str) -> bytes:
    """Returns the output of a shell that reads the text from stdin, as over SSH."""
    return subprocess.run(["sh"], input=text.encode(), capture_output=True, timeout=120, check=False).stdout


def results(script: str, count: int) -> list[Result]:
    answer = sh(script)
    assert batch_script.is_finished(answer, NONCE)
    return batch_script.results(answer, NONCE, count)


def together(*commands: Command) -> list[Result]:
    """Runs the commands in parallel, as a round of facts does; returns their results."""
    return results(batch_script.together(commands, NONCE, {}), len(commands))


def in_order(*commands: Command, **environment: str) -> list[Result]:
    """Runs the commands one after the other, as changes do; returns their results."""
    return results(batch_script.in_order(commands, NONCE, environment), len(commands))


said = st.tuples(outputs, outputs, st.integers(0, 123))


@settings(max_examples=25, deadline=None)
@given(st.lists(said, min_size=1, max_size=4), st.booleans())
def test_together_gives_every_answer_whole(answers: list[tuple[bytes, bytes, int]], reads: bool) -> None:
    found = together(*(says(*one, reads=reads) for one in answers))
    assert [(one.stdout, one.stderr, one.code) for one in found] == answers
    assert not any(one.cut for one in found)


@settings(max_examples=25, deadline=None)
@given(st.lists(said, min_size=1, max_size=4))
def test_in_order_goes_up_to_the_first_that_fails(answers: list[tuple[bytes, bytes, int]]) -> None:
    found = in_order(*(says(*one) for one in answers))
    ran = next((number for number, one in enumerate(answers, 1) if one[2]), len(answers))
    expected = [*answers[:ran], *[(b"", b"", -1)] * (len(answers) - ran)]
    assert [(one.stdout, one.stderr, one.code) for one in found] == expected


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=400))
def test_in_order_gives_a_command_its_stdin(stdin: bytes) -> None:
    first, second = in_order(command("cat", stdin=stdin), command("echo", "after"))
    assert first.stdout == stdin
    assert second.stdout == b"after\n"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), max_size=4))
def test_arguments_come_as_they_are(words: list[str]) -> None:
    show = script('for word; do printf "%s\\0" "$word"; done', *words, timeout_s=20)
    wanted = b"".join(word.encode() + b"\0" for word in words)
    assert together(show)[0].stdout == wanted
    assert in_order(show)[0].stdout == wanted


def test_more_than_ten_stay_in_order() -> None:
    """The results keep the order of the commands, although file names sort 10.o before 2.o."""
    found = together(*(says(f"answer {number}".encode(), b"e" * number) for number in range(23)))
    assert [one.text for one in found] == [f"answer {number}" for number in range(23)]
    assert [len(one.stderr) for one in found] == list(range(23))


def test_a_command_does_not_eat_the_script() -> None:
    found = together(command("cat"), command("cat"), command("echo", "still here"))
    assert [one.stdout for one in found] == [b"", b"", b"still here\n"]
    found = in_order(command("cat"), script("head -c 1000000"), command("echo", "still here"))
    assert [one.stdout for one in found] == [b"", b"", b"still here\n"]


def test_a_program_that_is_not_there() -> None:
    (found,) = together(command("no-such-program-here"))
    assert found.code == 127
    assert "no-such-program-here" in found.error_text
    assert "not found" in found.error_text


def test_limits() -> None:
    """The code is 124 after the time limit and none after a kill; the result of the parallel command is complete."""
    started = time.monotonic()
    long, short = f"3{os.getpid()}", f"0.1{os.getpid()}"  # durations that no other process sleeps
    found = together(
        command("sleep", long, timeout_s=0.2),
        command("sleep", long, timeout_s=0.2, reads=True),
        script('trap "" TERM; while :; do sleep "$1"; done', short, timeout_s=0.2),
        script('trap "" TERM; while :; do sleep "$1"; done', short, timeout_s=0.2, reads=True),
        says(b"beside"),
    )
    assert [one.code for one in found] == [124, 124, -1, -1, 0]
    assert found[4].stdout == b"beside"
    assert time.monotonic() - started < 60
    time.sleep(0.3)
    left = subprocess.run(["pgrep", "-f", f"^sleep ({long}|{short})"], capture_output=True, text=True, check=False)
    assert left.stdout == ""
    (slow,) = in_order(command("sleep", "30", timeout_s=0.2))
    assert slow.code == 124


def test_a_child_that_holds_the_output_holds_nobody_up() -> None:
    """The deadline ends the wait for its output; the results of the other commands are complete."""
    started = time.monotonic()
    held, beside = together(script("sleep 150 & echo said", timeout_s=0.2), says(b"beside"))
    assert time.monotonic() - started < 60
    assert held.code in (124, -1)
    assert beside.stdout == b"beside"


def test_a_round_costs_few_processes() -> None:
    """A round starts one `timeout` for all commands of the same limit, no pipe for read-only ones, and no polling."""
    text = batch_script.together([command("cat", "/proc/uptime", reads=True)] * 20, NONCE, {})
    assert (text.count("timeout -k"), text.count("head -c"), text.count("sleep")) == (1, 0, 0)
    several = [command("cat", timeout_s=limit_s) for limit_s in (2, 120, 2, 30)]
    assert batch_script.together(several, NONCE, {}).count("timeout -k") == 3


@pytest.mark.parametrize(("reads", "size"), [(False, batch_script.CUT_BYTES + 1), (True, 600_000_000)])
def test_more_than_4_mib_is_cut_and_says_so(reads: bool, size: int) -> None:
    """Untruncated errors would fill the tmpfs that holds all results of the round."""
    just, more, errors, beside = together(
        command("head", "-c", str(batch_script.CUT_BYTES), "/dev/zero", reads=reads),
        command("head", "-c", str(size), "/dev/zero", reads=reads),
        script(f"head -c {size} /dev/zero >&2", reads=reads),
        says(b"beside", reads=reads),
    )
    assert (len(just.stdout), just.cut) == (batch_script.CUT_BYTES, False)
    assert (len(more.stdout), more.cut) == (batch_script.CUT_BYTES, True)
    assert len(errors.stderr) <= batch_script.CUT_BYTES
    assert beside.stdout == b"beside"


def test_nothing_is_left_behind() -> None:
    (folder,) = together(command("pwd"))
    assert folder.text.strip().rpartition("/")[0] in ("/dev/shm", "/run")
    assert not os.path.exists(folder.text.strip())
    (folder,) = in_order(command("pwd"))
    assert not os.path.exists(folder.text.strip())


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("together", [False, True])
def test_nothing_is_left_behind_when_the_connection_is_lost(tmp_path: Path, together: bool, shell: str) -> None:
    make = batch_script.together if together else batch_script.in_order
    script = make([command("sh", "-c", f"touch {tmp_path}/ran; head -c 200000 /dev/zero")], NONCE, {})
    script = script.replace("room /run", f"room {tmp_path}", 1)
    run = subprocess.Popen([shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdin
    assert run.stdout
    run.stdout.close()
    run.stdin.write(script.encode())
    run.stdin.close()
    run.wait(20)
    assert [path.name for path in tmp_path.iterdir()] == ["ran"]


def test_the_environment() -> None:
    value = 'it\'s "$(id)"\n`x`'
    (found,) = in_order(command("printenv", "RIGWRIGHT_RUN"), RIGWRIGHT_RUN=value)
    assert found.stdout == value.encode() + b"\n"
    (found,) = together(script('echo "$LC_ALL $PATH"; umask'))
    assert found.text.split() == ["C", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "0022"]


HOSTILE = {
    "0 0 word": "no number",
    f"0 0 {'9' * 5000}": "a long number",
    "0 0 0\n0.o": "no size",
    "0 0 0\n0.o -5": "a negative size",
    "0 0 0\n" + "0.o 1\n" * 1000 + "0.o 1": "a long header",
}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"This account is currently not available.\n",
        f"{NONCE} codes 0\n".encode(),
        f"{NONCE} codes 0\n{NONCE} data\n\n{NONCE} end\n".encode(),
        f"{NONCE} codes 0  0\n0.o 0\n0.e 0\n{NONCE} data\n\n{NONCE} end\n".encode(),
        *(f"{NONCE} codes {head}\n{NONCE} data\n\n{NONCE} end\n".encode() for head in HOSTILE),
    ],
    ids=["nothing", "no shell", "cut short", "two codes missing", "a code that is not written", *HOSTILE.values()],
)
def test_what_is_no_answer_is_an_error(answer: bytes) -> None:
    """A full tmpfs loses the file with an exit code; the other codes must stay with their commands."""
    with pytest.raises(HostError):
        batch_script.results(answer, NONCE, 3)


def test_a_banner_before_the_answer() -> None:
    answer = b"Welcome to host\n" + sh(batch_script.together([says(b"x")], NONCE, {}))
    assert batch_script.results(answer, NONCE, 1) == [Result(0, b"x")]


def test_no_argument_holds_a_nul() -> None:
    with pytest.raises(ValueError, match="NUL"):
        batch_script.together([command("echo", "a\0b")], NONCE, {})


SMALL = "trap '' XFSZ; ulimit -f {blocks}; "
"""Shell text: no file can become larger than so many blocks of 512 bytes, as on a tmpfs without room."""


def test_a_full_run_and_shm_are_named_before_any_command_runs(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    text = batch_script.together([command("touch", str(begun))], NONCE, {})
    answer = sh(SMALL.format(blocks=1) + text)
    error = batch_script.without_room(answer, "host")
    assert error is not None
    assert "no room for the answers: /run (" in error.found
    assert "/dev/shm (" in error.found
    assert not begun.exists()
    with pytest.raises(HostError, match="no room for the answers"):
        batch_script.results(answer, NONCE, 1)


@pytest.mark.parametrize("together", [True, False])
def test_answers_that_fill_a_tmpfs_are_no_answers(tmp_path: Path, together: bool) -> None:
    """On a real tmpfs of 1 MiB; needs root. Without the check the second answer is empty, with exit code 1 and no
    error."""
    small = tmp_path / "small"
    small.mkdir()
    fills, beside = script("head -c 2000000 /dev/zero; :", reads=True), command("cat", "/etc/os-release", reads=True)
    commands = [fills, script("sleep 0.3; cat /etc/os-release", reads=True), beside]
    text = batch_script.together(commands, NONCE, {}) if together else batch_script.in_order(commands, NONCE, {})
    text = text.replace("/run", str(small)).replace("/dev/shm", str(small))
    argv = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=1m none {small} && exec sh"]
    done = subprocess.run(argv, input=text.encode(), capture_output=True, timeout=60, check=False)
    error = batch_script.without_room(done.stdout, "host")
    assert error is not None, done.stdout[-300:]
    assert f"{small} (0 MiB free)" in error.found


def test_a_full_run_leaves_dev_shm(tmp_path: Path) -> None:
    """Where /run has no room, the answers are in /dev/shm."""
    text = batch_script.together([command("pwd")], NONCE, {}).replace("room /run", f"room {tmp_path}/none")
    (found,) = batch_script.results(sh(text), NONCE, 1)
    assert found.text.startswith("/dev/shm/rigwright.")


@pytest.mark.parametrize("answer", [b"rigwright: no room", b"rigwright: no room \xff\x1b[2J x y z w"])
def test_what_a_host_says_of_its_room_is_harmless(answer: bytes) -> None:
    error = batch_script.without_room(answer, "host")
    assert error is not None
    assert error.found == "the host has no room for the answers: no temporary directory can be made"


def test_a_script_that_was_made_before_has_the_new_nonce() -> None:
    commands = [command("echo", "one"), command("echo", "@NONCE@ x")]
    scripts = [batch_script.together(commands, nonce, {"RUN": "1"}) for nonce in ("a" * 24, "b" * 24)]
    assert scripts[0].replace("a" * 24, "b" * 24) == scripts[1]
    assert scripts[0].count("a" * 24) == 3
    assert "@NONCE@ x" in scripts[0]
    assert "RUN=2" in batch_script.together(commands, "a" * 24, {"RUN": "2"})


@dataclass
class Kept:
    """A host whose answers are kept below `folder`: a command that counts how often it ran, and prints a file."""

    folder: Path

    def __post_init__(self) -> None:
        self.file, self.counted = self.folder / "file", self.folder / "counted"
        self.file.write_text("one")

    @property
    def answers(self) -> Path:
        """The folder of kept answers."""
        return self.folder / "run/answers"

    @property
    def times(self) -> int:
        """How often the command ran."""
        return self.counted.read_text().count("x") if self.counted.exists() else 0

    def command(self, then: str = "", key: str | None = None) -> Command:
        """The command, whose answer depends on the file."""
        text = f"echo x >>{self.counted}; cat {self.file}; {then}"
        key = state_of(str(self.file)) if key is None else key
        return script(text, timeout_s=5, cache_key=key)

    def ask(self, *commands: Command) -> list[Result]:
        """Asks for these, with a host's folder of answers below the folder of this one."""
        text = batch_script.together(commands, NONCE, {}).replace(UNTIL_BOOT, str(self.folder / "run"))
        answer = sh(text).replace(str(self.folder / "run").encode(), UNTIL_BOOT.encode())
        return batch_script.results(answer, NONCE, len(commands))


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Returns a host that has kept no answer."""
    return Kept(tmp_path)


def test_an_argument_that_is_a_path_belongs_to_the_key(kept: Kept) -> None:
    keyring = kept.folder / "a keyring"
    keyring.write_text("key of a stranger")
    ask = script(f'echo x >>{kept.counted}; cat "$1"', str(keyring), timeout_s=5, cache_key="echo constant")
    assert kept.ask(ask) == kept.ask(ask) == [Result(0, b"key of a stranger")]
    keyring.write_text("NVIDIA's key")
    assert (kept.ask(ask), kept.times) == ([Result(0, b"NVIDIA's key")], 2)


def test_an_answer_is_kept_while_what_it_depends_on_is_the_same(kept: Kept) -> None:
    other = says(b"other", b"error", 3)
    for _ in range(3):
        assert kept.ask(other, kept.command(), other) == [
            Result(3, b"other", b"error"),
            Result(0, b"one"),
            Result(3, b"other", b"error"),
        ]
    assert kept.times == 1
    kept.file.write_text("two")
    assert kept.ask(kept.command()) == kept.ask(kept.command()) == [Result(0, b"two")]
    assert kept.times == 2
    kept.file.unlink()
    kept.file.write_text("two")
    assert kept.ask(kept.command()) == [Result(0, b"two")]
    assert kept.times == 3


def test_each_command_has_its_own_kept_answer(kept: Kept) -> None:
    commands = [kept.command("echo a"), kept.command("echo b >&2"), kept.command("echo a", key="echo constant")]
    expected = [Result(0, b"onea\n"), Result(0, b"one", b"b\n"), Result(0, b"onea\n")]
    assert kept.ask(*commands) == expected
    assert kept.ask(*reversed(commands)) == expected[::-1]
    assert kept.times == 3
    assert len(list(kept.answers.glob("*.c"))) == 3


def test_a_batch_in_which_every_answer_is_kept(kept: Kept) -> None:
    """A kept answer is named and printed once, so the header keeps within its limit also with the longest names."""
    commands = [kept.command(f"echo {number}", key="echo constant") for number in range(40)]
    expected = [Result(0, f"one{number}\n".encode()) for number in range(40)]
    assert [kept.ask(*commands) for _ in range(3)] == [expected] * 3
    assert kept.times == 40


def test_dpkg_query_answers_also_with_exit_code_1(kept: Kept) -> None:
    words = ("dpkg-query", "-W", "-f", "${Package}\n", "--", "bash", "no-such-package")
    first, second = (kept.ask(command(*words, cache_key="echo constant"))[0] for _ in range(2))
    assert first == second
    assert (first.code, first.stdout) == (1, b"bash\n")
    assert len(list(kept.answers.glob("*.c"))) == 1


@pytest.mark.parametrize(
    ("then", "key"),
    [
        ("exit 1", None),
        ("exit 2", None),
        ("sleep 20", None),
        ('echo more >>"$2"', None),
        ("head -c 300000 /dev/zero", None),
        ("", ":"),
        ("", "missing-program"),
        ("", 'echo "$$ $(date +%N)"'),
    ],
    ids="failed, failed otherwise, too late, changed meanwhile, too long, empty key, no key, changing key".split(", "),
)
def test_what_is_not_kept(kept: Kept, then: str, key: str | None) -> None:
    first, second = (kept.ask(kept.command(then, key))[0] for _ in range(2))
    assert first.code == second.code
    assert kept.times == 2
    assert not list(kept.answers.glob("*.c"))


def test_answers_of_another_owner_are_not_taken(kept: Kept) -> None:
    kept.ask(kept.command())
    os.chown(kept.answers, 65534, 65534)
    kept.file.touch()
    for content in kept.answers.glob("*.o"):
        content.write_text("forged")
    assert kept.ask(kept.command()) == [Result(0, b"one")]
    assert kept.times == 2


def test_a_folder_of_answers_that_cannot_be_made(kept: Kept) -> None:
    (kept.folder / "run").write_text("a file")
    assert kept.ask(kept.command()) == kept.ask(kept.command()) == [Result(0, b"one")]
    assert kept.times == 2


def test_answers_of_last_week_go_when_another_is_kept(kept: Kept) -> None:
    kept.ask(kept.command())
    old = sorted(kept.answers.iterdir())
    for path in old:
        os.utime(path, (0, 0))
    kept.file.write_text("two")
    kept.ask(kept.command())
    new = sorted(kept.answers.iterdir())
    assert len(new) == 3
    assert not set(old) & set(new)


@pytest.mark.parametrize("gone", ["c", "o", "e"])
def test_what_is_left_of_an_answer_is_none(kept: Kept, gone: str) -> None:
    other = kept.command("echo other")
    kept.ask(kept.command(), other)
    (part,) = kept.answers.glob(f"{_checksum(kept.command())}-*.{gone}")
    part.unlink()
    for _ in range(2):
        assert kept.ask(kept.command(), other) == [Result(0, b"one"), Result(0, b"oneother\n")]
    assert kept.times == (3 if gone == "c" else 4)


def test_an_answer_that_is_deleted_meanwhile_is_still_whole(kept: Kept) -> None:
    other = kept.command("echo other")
    kept.ask(kept.command(), other)
    deletes = script('sleep 0.5; rm -rf "$1"', str(kept.answers), timeout_s=10)
    assert kept.ask(kept.command(), deletes, other) == [Result(0, b"one"), Result(0, b""), Result(0, b"oneother\n")]
    assert kept.times == 2


@pytest.mark.parametrize("sizes", ["0.o 2\n0.e 0", "0.o 4\n0.e 0", "0.o 3"])
def test_lengths_that_are_not_those_of_the_answers_are_refused(sizes: str) -> None:
    answer = f"{NONCE} codes 0\n{sizes}\n{NONCE} data\none\n{NONCE} end\n".encode()
    with pytest.raises(HostError, match="changed while the host printed it"):
        batch_script.results(answer, NONCE, 1)


def test_a_name_of_a_kept_answer_that_is_none_is_refused() -> None:
    answer = f"{NONCE} codes 0@../../etc/shadow\n{NONCE} data\n\n{NONCE} end\n".encode()
    with pytest.raises(HostError, match="did not answer as a shell does"):
        batch_script.results(answer, NONCE, 1)

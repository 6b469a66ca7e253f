"""Attack 1: a key file with NVIDIA's key and a second one. Only the pinned key may sign packages. Real gpg, gpgv and
apt."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rigwright.core.command import Result
from rigwright.facts import Unreadable
from rigwright.facts.apt import archive as apt_archive, sources as apt_sources
from tests.driver.apt_machine import Machine, run

NAMES = ("real", "second")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yields a folder with two keys, NAME.asc, and both in both.asc, the second one first."""
    folder = tmp_path_factory.mktemp("keys")
    folder.chmod(0o700)
    for name in NAMES:
        _gpg(folder, "--quick-gen-key", f"{name}@example.org", "rsa2048", "sign", "never")
        (folder / f"{name}.asc").write_text(_gpg(folder, "--armor", "--export", f"{name}@example.org"))
        (folder / f"{name}.secret").write_bytes(_exported(folder, "--export-secret-keys", name))
    both = _gpg(folder, "--armor", "--export", "second@example.org", "real@example.org")
    (folder / "both.asc").write_text(both)
    yield folder
    run("gpgconf", "--homedir", str(folder), "--kill", "all")


def _gpg(folder: Path, *words: str) -> str:
    fixed = ("gpg", "--homedir", str(folder), "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "")
    return run(*fixed, *words)


def _exported(folder: Path, option: str, name: str) -> bytes:
    file = folder / f"{name}{option}"
    _gpg(folder, "--output", str(file), option, f"{name}@example.org")
    return file.read_bytes()


def _fingerprint(folder: Path, name: str) -> str:
    listed = _gpg(folder, "--with-colons", "--list-keys", f"{name}@example.org")
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))


def _offered(tmp_path: Path, keys: Path, key_file: str, signer: str, more: bytes = b"") -> Result:
    """The answer of a machine to which a mirror offers that key file and an InRelease by `signer`, with `more` at its
    end."""
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "Packages").write_text("Package: a\nVersion: 1\nArchitecture: amd64\nFilename: ./a.deb\nSize: 1\n\n")
    (mirror / "Release").write_text(run("apt-ftparchive", "release", str(mirror)))
    _gpg(keys, "-u", f"{signer}@example.org", "--clearsign", "-o", f"{mirror}/InRelease", f"{mirror}/Release")
    with (mirror / "InRelease").open("ab") as release:
        release.write(more)
    shutil.copy(keys / key_file, mirror / "key.asc")
    machine = Machine(tmp_path / "machine", "ID=debian\nVERSION_ID=12\n", [])
    url = f"copy:{mirror}"
    return machine.answer(
        apt_archive.offered(("a",), apt_archive.Repository(url, f"{url}/key.asc", _fingerprint(keys, "real")))
    )


def _in_keyring(path: Path) -> tuple[str, ...] | None:
    fact = apt_sources.keyring(str(path))
    argv = [word.replace("/run", str(path.parent)) for word in fact.command.argv]
    done = subprocess.run(argv, capture_output=True, check=True)
    found: tuple[str, ...] | None = fact.parse(Result(done.returncode, done.stdout, done.stderr))
    return found


def test_packages_signed_by_the_second_key_are_refused(tmp_path: Path, keys: Path) -> None:
    answer = _offered(tmp_path, keys, "both.asc", "second")
    assert (answer.code, "BADSIG" in answer.error_text) == (1, True)


def test_a_key_file_without_the_pinned_key_is_refused(tmp_path: Path, keys: Path) -> None:
    repository = apt_archive.Repository("u", "k", _fingerprint(keys, "real"))
    answer = _offered(tmp_path, keys, "second.asc", "second")
    with pytest.raises(Unreadable, match=f"holds {_fingerprint(keys, 'second')}, not the expected key"):
        apt_archive.offered(("a",), repository).parse(answer)


def test_a_mirror_does_not_fill_the_host(tmp_path: Path, keys: Path) -> None:
    assert _offered(tmp_path, keys, "real.asc", "real", more=b"\n" * (16 << 20)).code == 1
    assert max(path.stat().st_size for path in (tmp_path / "machine/scratch").rglob("*") if path.is_file()) < 5 << 20


def test_only_the_pinned_key_of_the_file_is_trusted(tmp_path: Path, keys: Path) -> None:
    answer = _offered(tmp_path, keys, "both.asc", "real")
    assert answer.code == 0, answer.error_text
    archive = apt_archive.offered(("a",)).parse(answer)
    assert [version.version for version in archive.versions["a"]] == ["1"]
    exported = tmp_path / "exported.asc"
    exported.write_text(archive.key)
    real = _fingerprint(keys, "real")
    assert _in_keyring(exported) == (real,)
    assert real in _gpg(keys, "--with-colons", "--show-keys", str(exported))  # gpg reads it as well


def test_the_keys_of_a_keyring_as_gpg_lists_them(keys: Path, tmp_path: Path) -> None:
    both = {_fingerprint(keys, name) for name in NAMES}
    assert set(_in_keyring(keys / "both.asc") or ()) == both
    binary = tmp_path / "both.gpg"
    _gpg(keys, "--output", str(binary), "--export")
    assert set(_in_keyring(binary) or ()) == both
    (tmp_path / "random.gpg").write_bytes(b"\xff" * 5000)
    assert _in_keyring(tmp_path / "random.gpg") == ()
    assert _in_keyring(tmp_path / "none.gpg") is None


def test_no_other_packet_comes_with_the_pinned_key(tmp_path: Path, keys: Path) -> None:
    """Of a secret key sqv, which verifies for apt 3, accepts signatures too; a private packet stands for what nobody
    knows yet."""
    real = _exported(keys, "--export", "real")
    for number, more in enumerate(((keys / "second.secret").read_bytes(), b"\xfc\x03any" + real)):
        (keys / "more.asc").write_bytes(real + more)
        assert len(_in_keyring(keys / "more.asc") or ()) == 2
        (tmp_path / str(number)).mkdir()
        answer = _offered(tmp_path / str(number), keys, "more.asc", "real")
        assert answer.code == 0, answer.error_text
        lines = apt_archive.offered(("a",)).parse(answer).key.splitlines()
        assert base64.b64decode("".join(lines[2:-2])) == real

"""The keys that sign the lab's repositories. gpg makes them once; each call uses them in a temporary keyring."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rigwright.core.errors import HostError


@dataclass(frozen=True)
class Key:
    """A signing key: the secret part is in the file `secret` (mode 0600), the public part in memory."""

    secret: Path
    public: bytes
    armored: str
    fingerprint: str

    @classmethod
    def kept(cls, folder: Path, name: str) -> Key:
        """Returns the key in `folder`, and first generates it if there is none. Raises HostError when gpg fails."""
        secret = folder / "secret.asc"
        if not secret.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            with _home() as home:
                _gpg(home, "--passphrase", "", "--quick-generate-key", name, "rsa3072", "sign", "never")
                exported = _gpg(home, "--armor", "--export-secret-keys")
            new = secret.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_bytes(exported)
            new.rename(secret)
        with _home(secret) as home:
            listed = _gpg(home, "--with-colons", "--list-keys").decode()
            found = re.search(r"^fpr:{9}([0-9A-F]{40}):", listed, re.M)
            if not found:
                raise HostError("archive", f"{secret} holds no key", fix=f"delete {folder}; the lab makes a new one")
            return cls(secret, _gpg(home, "--export"), _gpg(home, "--armor", "--export").decode(), found[1])

    def clearsigned(self, text: str) -> str:
        """Returns `text` in a clear-signed message, the format of InRelease."""
        return self._sign(text, "--clearsign")

    def detached(self, text: str) -> str:
        """Returns the armored signature of `text`, the format of Release.gpg."""
        return self._sign(text, "--armor", "--detach-sign")

    def _sign(self, text: str, *how: str) -> str:
        with _home(self.secret) as home:
            return _gpg(home, "--digest-algo", "SHA512", *how, stdin=text.encode()).decode()


@contextmanager
def _home(secret: Path | None = None) -> Iterator[Path]:
    """A temporary gpg home. Its path is short enough for the agent's socket, and the agent ends with it."""
    with tempfile.TemporaryDirectory(prefix="rw-gpg-", dir="/tmp") as folder:
        home = Path(folder)
        try:
            if secret:
                _gpg(home, "--import", str(secret))
            yield home
        finally:
            subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True, check=False)


def _gpg(home: Path, *words: str, stdin: bytes = b"") -> bytes:
    """Runs gpg and returns its output. Raises HostError when it fails."""
    argv = ["gpg", "--homedir", str(home), "--batch", "--no-tty", "--quiet", "--pinentry-mode", "loopback", *words]
    done = subprocess.run(argv, input=stdin, capture_output=True, check=False)
    if done.returncode != 0:
        raise HostError("archive", f"gpg: {done.stderr.decode(errors='replace').strip()}", fix="is gnupg installed?")
    return done.stdout

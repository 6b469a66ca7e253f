"""Opens what ansible-vault encrypted, with Ansible's own library."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from rigwright.core import lazy_re
from rigwright.core.control_characters import one_line
from rigwright.core.errors import InputError
from rigwright.core.secrets import Secret
from rigwright.inventory.secret_sources import PASSWORD_FIX, Source, command_output, read_once, read_private

INSTALL = ".venv/bin/pip install 'rigwright[vault]', or ansible-core"
_importing = threading.Lock()


def decrypt(text: str, password_file: str, where: str) -> str:
    """The plain text. Raises InputError without the right password, and if Ansible's library is not installed."""
    if not password_file:
        raise InputError(
            where, "a value that ansible-vault encrypted, and no password", "its password", PASSWORD_FIX.format("it")
        )
    lines = [line.strip() for line in text.strip().splitlines()]
    if not _FORM.fullmatch("\n".join(lines)):
        raise InputError(where, "what ansible-vault encrypted is damaged", "the text that ansible-vault wrote")
    try:
        with _importing, _quiet_import():
            from ansible.parsing import vault as library
    except Exception as error:  # its import also reads configuration files, which may be wrong
        problem = f"a value that ansible-vault encrypted, and no library to open it ({type(error).__name__}: {error})"
        raise InputError(where, problem, "ansible-core", INSTALL) from None
    password = Secret(read_once(Password(str(Path(password_file).expanduser())), "--vault-password-file"))
    try:
        opened = library.VaultLib([("default", library.VaultSecret(password.reveal().encode()))])
        plain: bytes = opened.decrypt("\n".join(lines).encode())
        return plain.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(where, "ansible-vault encrypted no UTF-8", "a text") from None
    except library.AnsibleError as error:
        problem = f"ansible-vault cannot open it ({one_line(str(error))})"
        fix = f"the password of {password_file} is another one; ansible-vault view tells"
        raise InputError(where, problem, "the password that it was encrypted with", fix) from None


_FORM = lazy_re.compile(r"\$ANSIBLE_VAULT;1\.[12];[A-Z0-9]+(;[^\n]*)?(\n[0-9a-f]+)+\n*")


class Password(Source, frozen=True):
    """The password of ansible-vault: in a private file, or printed by a program, as Ansible reads it."""

    file: str
    shortest = 1

    def read(self, where: str) -> str:
        """The password. Raises InputError."""
        is_program = os.path.isfile(self.file) and os.access(self.file, os.X_OK)
        text = command_output((os.path.abspath(self.file),), where) if is_program else read_private(self.file, where)
        return text.strip()


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Ansible's import makes folders and reads ansible.cfg of the current folder; inside this context it does not."""
    with tempfile.TemporaryDirectory(prefix="rigwright-vault.") as folder:
        config = Path(folder) / "ansible.cfg"
        config.touch()
        given = {"ANSIBLE_CONFIG": str(config), "ANSIBLE_LOCAL_TEMP": folder, "ANSIBLE_HOME": folder}
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

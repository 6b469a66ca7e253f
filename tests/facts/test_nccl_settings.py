"""The files in which NCCL's variables are looked for, on a real shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rigwright.core.command import Result
from rigwright.facts import parsed
from rigwright.facts.nccl import p2p_test as nccl


def settings_below(folder: Path) -> list[tuple[str, str, str]]:
    """The settings of a machine whose /etc, /root and /home are in a folder; the paths as on the machine."""
    words = list(nccl.settings.command.argv)
    for place in ("/etc/", "/root/", "/home/"):
        words[2] = words[2].replace(f" {place}", f" {folder}{place}")
    words[2] = words[2].replace(
        'home=$(getent passwd -- "${SUDO_USER:-root}" | cut -d: -f6)', f"home={folder}/home/ada"
    )
    done = subprocess.run(words, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"})
    found = parsed(nccl.settings, Result(done.returncode, done.stdout, done.stderr))
    return sorted((one.name, one.value, one.where.removeprefix(str(folder))) for one in found)


def write(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def test_settings_of_the_system_and_of_users(tmp_path: Path) -> None:
    write(tmp_path, "etc/environment", "PATH=/bin\nNCCL_DEBUG=INFO\n# NCCL_IB_DISABLE=1\n")
    write(tmp_path, "etc/nccl.conf", "NCCL_P2P_LEVEL = SYS\nMY_NCCL_DEBUG=1\n")
    write(tmp_path, "etc/profile.d/a b.sh", 'export NCCL_SOCKET_IFNAME="eth0"\n')
    write(tmp_path, "home/ada/.bashrc", "export NCCL_P2P_DISABLE=1\0 x\n")
    write(tmp_path, "home/eve/.profile", "nothing\n")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ".bashrc").symlink_to(tmp_path / "home" / "ada" / ".bashrc")
    (tmp_path / "root" / ".profile").symlink_to("nowhere")
    os.mkfifo(tmp_path / "home" / "eve" / ".bashrc")
    assert settings_below(tmp_path) == [
        ("NCCL_DEBUG", "INFO", "/etc/environment"),
        ("NCCL_P2P_DISABLE", "1", "/home/ada/.bashrc"),
        ("NCCL_P2P_DISABLE", "1", "/root/.bashrc"),
        ("NCCL_P2P_LEVEL", "SYS", "/etc/nccl.conf"),
        ("NCCL_SOCKET_IFNAME", "eth0", "/etc/profile.d/a b.sh"),
    ]


def test_a_long_file_is_read_to_its_limit_and_none_is_no_error(tmp_path: Path) -> None:
    assert settings_below(tmp_path) == []
    write(tmp_path, "etc/environment", "NCCL_DEBUG=INFO\n")
    write(tmp_path, "home/ada/.bashrc", "NCCL_ALGO=Ring\n" + "x" * 70 * 4096 + "\nNCCL_PROTO=LL\n")
    write(tmp_path, "home/ada/.profile", "".join(f"NCCL_A{number}=1\n" for number in range(50)))
    found = settings_below(tmp_path)
    assert [row for row in found if not row[0].startswith("NCCL_A") or row[0] == "NCCL_ALGO"] == [
        ("NCCL_ALGO", "Ring", "/home/ada/.bashrc"),
        ("NCCL_DEBUG", "INFO", "/etc/environment"),
    ]
    assert sum(path == "/home/ada/.profile" for _, _, path in found) == 20

"""Everything that is downloaded is proved by a hash or a signature before it is used; every place that downloads is
listed here."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from lab.base import debian
from lab.bench import fleet
from lab.host import image
from lab.simulators.nvml import real_smi
from rigwright.core.errors import HostError
from tests.paths import ROOT

DOWNLOADS = {
    "lab/bench/fleet.py": "hash: requirements/bench.lock",
    "lab/archive/engines.py": "signature: apt with the keyring lab/host/keys",
    "lab/base/debian.py": "signature: mmdebstrap with the keyring lab/host/keys",
    "lab/base/debian13_root.py": "signature: mmdebstrap with the keyring lab/host/keys; "
    "pip with this machine's configuration",
    "lab/vm/device/build.py": "signature: apt with the keys of this machine's Debian sources",
    "lab/vm/files/build-modules": "signature: apt in the chroot, with Debian's keyring",
    "lab/vm/modules.py": "signature: apt with the keyring lab/host/keys",
    "lab/simulators/guest_gpu/build-layer": "signature: apt in the image, with Debian's keyring",
    "lab/simulators/nvml/real_smi.py": "signature: apt with the keyring lab/host/keys, and the hash of the program",
    "lab/faults/catalogue/dkms_broken.py": "signature: apt of a simulated host, from the lab's own archive",
    "lab/faults/catalogue/fabric_skew.py": "signature: apt of a simulated host, from the lab's own archive",
    "lab/faults/catalogue/library_moved.py": "signature: apt of a simulated host, from the lab's own archive",
    "rigwright/catalogue/feed_files.py": "TLS only, from the host that was named; data, which a person reads as a diff",
    "rigwright/engine/p2p/wheels.py": "hash: rigwright/catalogue/nccl_wheels.yml, again on the host",
    "rigwright/facts/apt/archive.py": "signature: the pinned fingerprint, alone in its keyring",
    "rigwright/facts/apt/dpkg.py": "nothing: apt-get simulates",
    "rigwright/features/training/facts.py": "hash: the smallest wheel of the list, by pip; no build",
    "rigwright/features/training/operations.py": "hash: rigwright/catalogue/torch_locks.yml or training.lock, by pip; "
    "no build",
    "rigwright/features/rollback/facts.py": "signature: apt of the host reads lists, "
    "with the keys that it trusted before a run; packages are not fetched",
    "rigwright/features/guard/host/guard_notify.py": "nothing: it sends a message to the owner's webhook, "
    "and reads no answer but its status",
    "rigwright/operations/apt.py": "signature: apt of the host",
    "scripts/audit": "TLS: pip-audit asks its service; or a folder of the user's",
    "scripts/demo": "signature: apt of a simulated host, from the lab's own archive",
    "scripts/lock": "hash: requirements/tools.lock; it writes the hashes of the other lock files",
    "scripts/lib/machine.sh": "signature: apt of this machine",
    "scripts/release": "nothing: pip wheel --no-index",
    "scripts/setup": "hash: requirements/rigwright.lock or requirements/test.lock",
}
"""Each file that can download, and what proves what it downloads."""

_DOWNLOADS = re.compile(
    r"urllib\.request|\[\"mmdebstrap\"|/ \"pip\"|\"pip\", "
    r"\"|^\s*pip install|\"pip_audit\"|/uv\" pip|apt-helper -|curl -fsS \"|-m pip (install -|-[^>]* download )"
    r"|(?<!sudo )apt-get -?[^'`]*(-q|\$private|-f install >)|\"apt-get\", \"-q\""
)
"""A line of a program that starts a download. Texts that tell a person what to type have `sudo` or a shorter
command."""


def test_every_file_that_downloads_is_listed() -> None:
    """A new download needs an entry, and so the thought of what proves it. Texts for people (fix, cause) are not
    commands."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "rigwright", "lab", "onhost", "scripts", "tasks.py"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    found = set()
    for name in tracked.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.suffix in ("", ".py", ".sh") and path.is_file() and _commands(path):
            found.add(name)
    assert found == set(DOWNLOADS)


def _commands(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if _DOWNLOADS.search(line)]


SDIST = {
    "pyproject.toml": '[build-system]\nrequires = ["builder"]\nbuild-backend = "builder"\n',
    "PKG-INFO": "Metadata-Version: 2.1\nName: wanted\nVersion: 1.0\n",
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder that is pip's only source: `wanted` as source, and `builder`, which no hash names and which
    leaves `ran`."""
    folder = tmp_path / "index"
    folder.mkdir()
    with tarfile.open(folder / "wanted-1.0.tar.gz", "w:gz") as archive:
        for name, text in SDIST.items():
            (tmp_path / name).write_text(text)
            archive.add(tmp_path / name, f"wanted-1.0/{name}")
    with zipfile.ZipFile(folder / "builder-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("builder.py", f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\nName: builder\nVersion: 1.0\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            wheel.writestr(f"builder-1.0.dist-info/{name}", text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def _locked(path: Path, index: Path) -> None:
    digest = hashlib.sha256((index / "wanted-1.0.tar.gz").read_bytes()).hexdigest()
    path.write_text(f"wanted==1.0 \\\n    --hash=sha256:{digest}\n")


@pytest.mark.nightly
def test_setup_runs_no_build_tool_that_no_hash_names(tmp_path: Path, index: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup", checkout / "scripts")
    (checkout / "pyproject.toml").touch()
    (checkout / "requirements").mkdir()
    _locked(checkout / "requirements" / "rigwright.lock", index)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUDO_")}
    done = subprocess.run(
        ["scripts/setup"], cwd=checkout, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, (tmp_path / "ran").exists()) == (1, False)
    assert "could not install the packages" in done.stderr


@pytest.mark.nightly
def test_bench_runs_no_build_tool_that_no_hash_names(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements").mkdir()
    _locked(tmp_path / "requirements" / "bench.lock", index)
    monkeypatch.setattr(fleet, "CHECKOUT", tmp_path)
    monkeypatch.setattr(fleet, "VENV", tmp_path / "venv")
    with pytest.raises(subprocess.CalledProcessError):
        fleet._install()
    assert not (tmp_path / "ran").exists()


def test_a_cached_nvidia_smi_with_other_content_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "nvidia-smi" / "550.163.01" / "nvidia-smi"
    cached.parent.mkdir(parents=True)
    cached.write_text("#!/bin/sh\n")
    monkeypatch.setattr(real_smi, "_fetch", lambda _version, binary: binary.write_text("as Debian has it"))
    assert real_smi.nvidia_smi("550.163.01", tmp_path).read_text() == "as Debian has it"


def test_a_mirror_that_debian_did_not_sign_makes_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real mmdebstrap, with a mirror whose Release file has no signature, and one by another key."""
    release = tmp_path / "mirror" / "dists" / image.SUITE / "Release"
    release.parent.mkdir(parents=True)
    release.write_text(
        f"Suite: {image.SUITE}\nCodename: {image.SUITE}\nComponents: main\nArchitectures: amd64\nSHA256:\n"
    )
    monkeypatch.setattr(debian, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(debian, "mirror", lambda _suite: f"file://{tmp_path}/mirror")
    gpg = ("gpg", "--homedir", str(tmp_path), "--batch", "-q", "--pinentry-mode", "loopback", "--passphrase", "")
    tmp_path.chmod(0o700)
    subprocess.run([*gpg, "--quick-gen-key", "other@example.org", "rsa2048", "sign", "never"], check=True)
    for signed in (False, True):
        if signed:
            subprocess.run([*gpg, "--clearsign", "-o", f"{release.parent}/InRelease", str(release)], check=True)
        with pytest.raises(HostError) as refused:
            debian.bootstrap(tmp_path / f"root-{signed}", image.SUITE, image.PACKAGES, lambda _: None)
        assert "is not signed" in str(refused.value.found)
        assert not (tmp_path / f"root-{signed}" / "usr").exists()
    subprocess.run(["gpgconf", "--homedir", str(tmp_path), "--kill", "all"], check=True)

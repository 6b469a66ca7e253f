"""The script that stands for nvidia-smi of newer branches, around a program with a fixed output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lab.simulators.nvml.smi_forms import forms, wrapper

XML = """<nvidia_smi_log>
	<gpu id="00000000:06:00.0">
		<gpu_reset_status>
			<reset_required>No</reset_required>
		</gpu_reset_status>
		<gsp_firmware_version>N/A</gsp_firmware_version>
		<ecc_errors>
		</ecc_errors>
	</gpu>
	<gpu id="00000000:0A:00.0">
		<gsp_firmware_version>N/A</gsp_firmware_version>
	</gpu>
</nvidia_smi_log>"""


def _printed(folder: Path, version: str, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the script around a program that prints this text and exits with 14."""
    real = folder / "real"
    (folder / "text").write_text(text)
    real.write_text(f'#!/bin/sh\ncat "{folder}/text"\nexit 14\n')
    real.chmod(0o755)
    for store, lines in (
        ("board.conf", "gpu0.bus_id=0000:06:00.0\ngpu1.bus_id=0000:0a:00.0\n"),
        ("volatile/state", "gpu1.recovery_action=Drain P2P\ngpu0.repair.tpc=1\ngpu0.recovery_action=\n"),
    ):
        (folder / store).parent.mkdir(exist_ok=True)
        (folder / store).write_text(lines)
    script = wrapper(version, str(real))
    assert script is not None
    env = {**os.environ, "NVMLSIM_DIR": str(folder)}
    argv = ["sh", "-c", script, "nvidia-smi", *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("version", ["470.256.02", "535.261.03", "550.163.01"])
def test_a_real_program_needs_no_script(version: str) -> None:
    assert forms(version) == []
    assert wrapper(version) is None


def test_each_gpu_has_its_own_values(tmp_path: Path) -> None:
    done = _printed(tmp_path, "595.80", XML, "-q", "-x")
    assert (done.returncode, done.stderr) == (14, "")
    assert [
        line.strip() for line in done.stdout.splitlines() if "gpu_re" in line or "repair" in line or "id=" in line
    ] == [
        '<gpu id="00000000:06:00.0">',
        "<gpu_recovery_action>None</gpu_recovery_action>",
        "<channel_repair_pending>No</channel_repair_pending>",
        "<tpc_repair_pending>Yes</tpc_repair_pending>",
        '<gpu id="00000000:0A:00.0">',
        "<gpu_recovery_action>Drain P2P</gpu_recovery_action>",
    ]


def test_the_spelling_follows_the_branch_and_other_commands_are_the_programs(tmp_path: Path) -> None:
    text = "NVML: Unable to retrieve NVLink information as all links are inActive"
    assert _printed(tmp_path, "580.178.04", text, "nvlink", "-s").stdout.strip() == text
    assert _printed(tmp_path, "595.80", text, "nvlink", "-s").stdout.strip() == text.replace("NVLink", "Nvlink")
    assert _printed(tmp_path, "595.80", XML, "--query-gpu=index").stdout == XML

"""Commands of a batch that ask one program are one process, and each has the answer that it gets alone."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigwright.core.command import Command, Result, command, script
from rigwright.facts import Fact, Unavailable, dpkg, files, gpu, parsed, systemd, topology
from rigwright.inventory.model import Host
from rigwright.ssh import merged_queries
from rigwright.ssh.transport import Transport
from tests.machine_speed import within


class Shell(Transport):
    """This machine's sh, with all scripts that it was given."""

    def __init__(self) -> None:
        super().__init__(Host("host", (), {}))
        self.scripts: list[str] = []

    def _exchange(self, script: bytes, nonce: str, limit_s: float) -> bytes:  # noqa: ARG002
        self.scripts.append(script.decode())
        return subprocess.run(["sh"], input=script, capture_output=True, timeout=limit_s, check=True).stdout


def alone(cmd: Command, environment: Mapping[str, str] | None = None) -> Result:
    """What a command answers by itself."""
    done = subprocess.run(
        cmd.argv,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
        env={**os.environ, "LC_ALL": "C", **(environment or {})},
    )
    return Result(done.returncode, done.stdout, done.stderr)


def values(facts: Sequence[Fact[Any]], answers: Sequence[Result]) -> list[str]:
    """What the facts are with these answers."""
    return [repr(parsed(fact, answer)) for fact, answer in zip(facts, answers, strict=True)]


def test_files_of_every_kind(tmp_path: Path) -> None:
    contents = {
        "text": b"a = 1\n", "empty": b"", "no newline": b"x", "binary": bytes(range(256)) * 4, "frames": b"\ndata\nhere\nabsent\n",
        "just small": b"s" * 65536, "large": b"l" * 65537, "larger": os.urandom(200_000),
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("text")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "two\nlines").write_bytes(b"2")
    (tmp_path / "-n").write_bytes(b"option")
    os.mkfifo(tmp_path / "pipe")
    names = [*contents, "folder", "link", "dangling", "two\nlines", "pipe", "nothing", "-n", "also nothing"]
    facts = [files.file(str(tmp_path / name)) for name in names]
    shell = Shell()
    answers = shell.run([fact.command for fact in facts], together=True)
    # The script of one file also prints the content behind a link, which its parser does not read.
    assert values(facts, answers) == values(facts, [alone(fact.command) for fact in facts])
    assert [
        file.sha256 != "" for fact, answer in zip(facts, answers, strict=True) if (file := parsed(fact, answer))
    ].count(True) == 10
    assert (shell.round_trips, shell.scripts[0].count("stat -c")) == (
        1,
        1 + 1,
    )  # one for files, one of the batch itself


def test_files_that_are_all_absent(tmp_path: Path) -> None:
    facts = [files.file(str(tmp_path / name)) for name in ("a", "b", "c")]
    answers = Shell().run([fact.command for fact in facts], together=True)
    assert [parsed(fact, answer) for fact, answer in zip(facts, answers, strict=True)] == [None] * 3


@pytest.mark.parametrize("content", [b"short", b"a long one in its place"], ids=["shorter", "longer"])
def test_a_file_that_changes_meanwhile_is_asked_for_alone(tmp_path: Path, content: bytes) -> None:
    facts = [files.file(str(tmp_path / name)) for name in ("a", "b")]
    for name in "ab":
        (tmp_path / name).write_bytes(b"0123456789")

    class Changing(Shell):
        def _exchange(self, script: bytes, nonce: str, limit_s: float) -> bytes:
            cat = b'exec cat -- "$@"'
            changed = b'printf %%s "%s" >"%s"; ' % (content, bytes(tmp_path / "a"))
            return super()._exchange(script.replace(cat, changed + cat) if not self.scripts else script, nonce, limit_s)

    shell = Changing()
    answers = shell.run([fact.command for fact in facts], together=True)
    assert [file.content for fact, answer in zip(facts, answers, strict=True) if (file := parsed(fact, answer))] == [
        content,
        b"0123456789",
    ]
    assert shell.round_trips == 2


def test_packages_by_name_and_pattern() -> None:
    facts: list[Fact[Any]] = [
        dpkg.packages("bash", "dpkg"),
        dpkg.packages("coreutils", "no-such-package"),
        dpkg.matching("lib*1", "no-such-*"),
        dpkg.packages("no-such-package-either"),
        dpkg.matching("bas?", "*"),
    ]
    shell = Shell()
    answers = shell.run([fact.command for fact in facts], together=True)
    expected = [alone(fact.command) for fact in facts]
    assert values(facts, answers) == values(facts, expected)
    assert [answer.code for answer in answers] == [answer.code for answer in expected] == [0, 1, 1, 1, 0]
    assert "no packages found matching no-such-package-either" in answers[3].error_text
    assert shell.scripts[0].count("dpkg-query") == 1


def test_a_pattern_that_dpkg_reads_otherwise_is_asked_for_alone() -> None:
    facts = [dpkg.matching("ba[sx]h"), dpkg.packages("dpkg"), dpkg.packages("bash:amd64")]
    shell = Shell()
    answers = shell.run([fact.command for fact in facts], together=True)
    assert values(facts, answers) == values(facts, [alone(fact.command) for fact in facts])
    assert shell.round_trips == 2


def test_units() -> None:
    facts = [systemd.unit(name) for name in ("a.service", "gone.service", "c.timer")]
    blocks = [
        f"LoadState={load}\nActiveState=x\nSubState=\nUnitFileState=\nNeedDaemonReload=no\n"
        for load in ("loaded", "not-found", "masked")
    ]
    commands = tuple(fact.command for fact in facts)
    [one] = merged_queries.merged(commands)
    assert one.command.argv == (*commands[0].argv[:4], "a.service gone.service c.timer")
    clock = "now=2.5\nup=1.5\n"
    answers = one.split(Result(0, "\n".join([*blocks, clock]).encode()), commands)
    assert answers == [Result(0, f"{block}\n{clock}".encode()) for block in blocks]
    for bad in (
        Result(1, b"Failed to connect to bus"),
        Result(0, "\n".join([*blocks[:2], clock]).encode()),
        Result(0, b""),
        Result(124, b""),
    ):
        assert one.split(bad, commands) == [None] * 3


GPUS = [
    ("0", "GPU-aa", "00000000:06:00.0", "Tesla V100-SXM2-16GB", "Enabled", "P0"),
    ("1", "GPU-bb", "00000000:07:00.0", "[N/A]", "Disabled", "[Unknown Error]"),
]
NAMES = ("index", "uuid", "pci.bus_id", "name", "persistence_mode", "pstate")
SMI = """#!/bin/sh
echo "$*" >>"$0.calls"
case $MODE in
  gone) echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9;;
  lost) case $* in *' -i '*07:00*) echo 'Unable to determine the device handle for GPU0000:07:00.0: GPU is lost.'; exit 15;; *' -i '*) ;;
    *) echo 'Unable to determine the device handle for GPU0000:07:00.0: GPU is lost.  Reboot the system to recover this GPU'; exit 15;; esac;;
  corrupt) echo 'WARNING: infoROM is corrupted at gpu 0000:06:00.0'; code=14;;
  old) case $* in *pstate*) echo 'Field "pstate" is not a valid field to query.'; exit 2;; esac;;
  none) echo 'No devices were found'; exit 6;;
esac
IFS=,
while IFS='|' read -r a b c d e f; do
  case $MODE$a in lost1) continue;; esac
  line=
  IFS=,
  for field in $(echo "$1" | sed 's/.*=//'); do
    case $field in index) v=$a;; uuid) v=$b;; pci.bus_id) v=$c;; name) v=$d;; persistence_mode) v=$e;; pstate) v=$f;; esac
    line="$line, $v"
  done
  echo "${line#, }"
done <<.
ROWS
.
exit ${code:-0}
"""


@pytest.mark.parametrize("mode", ["", "gone", "corrupt", "old", "none", "lost"])
def test_fields_of_gpus(tmp_path: Path, mode: str) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI.replace("ROWS", "\n".join("|".join(row) for row in GPUS)))
    smi.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MODE": mode}
    commands = [
        gpu.query("--query-gpu=" + fields)
        for fields in ("index,uuid,pci.bus_id,name", "pci.bus_id,pstate", "uuid,persistence_mode,index")
    ]
    expected = [alone(cmd, environment) for cmd in commands]
    calls = Path(f"{smi}.calls")
    calls.unlink()
    [one] = merged_queries.merged(tuple(commands))
    assert one.command.argv[-1] == "--query-gpu=index,uuid,pci.bus_id,name,pstate,persistence_mode"
    answers = one.split(alone(one.command, environment), tuple(commands))
    if mode in ("old", "lost"):  # the fields of one are no reason to doubt another: each is asked for alone
        assert answers == [None] * 3
    else:
        assert answers == expected
        assert len(calls.read_text().splitlines()) == 1


XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<driver_version>DRIVER</driver_version>
\t<attached_gpus>COUNT</attached_gpus>
GPUS</nvidia_smi_log>
"""
CARD = """\t<gpu id="00000000:0INDEX:00.0">
\t\t<product_name>NAME</product_name>
\t\t<persistence_mode>Enabled</persistence_mode>
\t\t<mig_mode>
\t\t\t<current_mig>N/A</current_mig>
\t\t\t<pending_mig>N/A</pending_mig>
\t\t</mig_mode>
\t\t<uuid>GPU-INDEX</uuid>
\t\t<pci>
\t\t\t<pci_bus_id>00000000:0INDEX:00.0</pci_bus_id>
\t\t</pci>
\t\t<performance_state>P8</performance_state>
\t\t<gpu_power_readings>
\t\t\t<current_power_limit>180.00 W</current_power_limit>
\t\t\t<requested_power_limit>200.00 W</requested_power_limit>
\t\t\t<default_power_limit>300.00 W</default_power_limit>
\t\t\t<min_power_limit>150.00 W</min_power_limit>
\t\t\t<max_power_limit>300.00 W</max_power_limit>
\t\t</gpu_power_readings>
\t\t<applications_clocks>
\t\t\t<graphics_clock>1005 MHz</graphics_clock>
\t\t\t<mem_clock>Requested functionality has been deprecated</mem_clock>
\t\t</applications_clocks>
\t</gpu>
"""


def xml(*names: str, **replaced: str) -> bytes:
    """The XML of GPUs with these names."""
    cards = [CARD.replace("INDEX", str(index)).replace("NAME", name) for index, name in enumerate(names)]
    text = XML.replace("GPUS", "".join(cards)).replace("COUNT", str(len(names)))
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text.encode()


FIELDS = gpu.query("--query-gpu=index,uuid,pci.bus_id,name,persistence_mode,power.limit")
REST = gpu.query(
    "--query-gpu=pstate,mig.mode.current,power.min_limit,clocks.applications.memory,clocks.applications.graphics"
)


def split(result: Result, *commands: Command) -> Sequence[Result | None]:
    [one] = merged_queries.merged(commands)
    assert one.command in commands
    return one.split(result, commands)


def test_the_xml_of_gpus_has_their_fields() -> None:
    result = Result(0, xml("Tesla V100-SXM2-16GB", "NVIDIA RTX 6000 Ada Generation"))
    fields, itself, rest = split(result, FIELDS, gpu.XML, REST)
    assert itself == result
    assert fields
    assert rest
    assert fields.text == (
        "0, GPU-0, 00000000:00:00.0, Tesla V100-SXM2-16GB, Enabled, 200.00\n"
        "1, GPU-1, 00000000:01:00.0, NVIDIA RTX 6000 Ada Generation, Enabled, 200.00\n"
    )
    assert rest.text == 2 * "P8, [N/A], 150.00, [Requested functionality has been deprecated], 1005\n"


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (Result(0, xml("V100", requested_power_limit="other_limit")), ""),
        (Result(0, xml("V100", **{"200.00 W": "GPU is lost"})), ""),
        (Result(0, xml("V100", **{"200.00 W": "0.00 W"})), ""),
        (Result(0, xml("V100", **{"200.00 W": "3392107.25 W"})), ""),
        (Result(0, xml("V100", **{"200.00 W": "N/A"})), ""),
        (Result(0, xml("V100", **{f"{watts}.00 W": "N/A" for watts in (150, 180, 200, 300)})), "fields rest"),
        (Result(0, xml("V100", **{"P8": "Unknown Error"})), "fields"),
        (Result(0, xml("V100", **{"P8": "P8, 1"})), "fields"),
        (Result(0, xml("Unknown Error")), "rest"),
        (Result(0, xml("GPU is lost", "V100")), "rest"),
        (Result(0, xml('V100", "1')), "rest"),
        (Result(0, xml("V100", **{"<attached_gpus>1": "<attached_gpus>2"})), ""),
        (Result(0, xml("V100") + xml("V100")), ""),
        (Result(14, xml("V100") + b"WARNING: infoROM is corrupted at gpu 0000:06:00.0\n"), "fields rest"),
        (Result(14, b"WARNING: infoROM is corrupted at gpu 0000:06:00.0\n" + xml("V100")), "fields rest"),
        (Result(0, b"Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost\n" + xml("V100")), ""),
        (Result(15, xml("V100")), ""),
        (Result(0, xml("V100")[:-40]), ""),
        (Result(0, xml("V100"), cut=True), ""),
        (Result(6, b"No devices were found\n"), "fields rest"),
        (Result(9, b"NVIDIA-SMI has failed\n"), "fields rest"),
        (Result(124, b""), ""),
        (Result(0, xml("Timeout")), "rest"),
        (Result(0, xml("Corrupted infoROM")), "rest"),
        (Result(0, xml("NVIDIA TITAN V")), "fields rest"),
        (Result(0, xml(*["V100"] * 257)), ""),
        (Result(0, xml("V100", **{"P8": "&xxe;"})), ""),
    ],
)
def test_what_the_xml_does_not_say_for_certain_is_asked_for_alone(result: Result, told: str) -> None:
    itself, *others = split(result, gpu.XML, FIELDS, REST)
    assert itself == result
    assert " ".join(name for name, answer in zip(("fields", "rest"), others, strict=True) if answer) == told


UP = {"link": 0, "mb_s": 25781, "peer": "00000000:07:00.0", "errors": 3}
DOWN = {"link": 1, "mb_s": None, "peer": None, "errors": None}
SILENT = {"index": 3, "name": None, "uuid": None, "nvlinks": None, "errors": {"gpu": "no answer within 20 s"}}
ONE = {"index": 0, "name": "Tesla V100-SXM2-16GB", "uuid": "GPU-aa", "errors": {}, "nvlinks": [UP, DOWN]}


def test_the_document_of_nvml_has_the_links() -> None:
    alone = {**ONE, "index": 1, "uuid": "GPU-bb", "nvlinks": []}
    down = {**ONE, "index": 2, "uuid": "GPU-cc", "nvlinks": [DOWN]}
    lost = {**SILENT, "errors": {"gpu": "GPU is lost"}, "code": 15, "hangs": False}
    document = Result(0, json.dumps({"gpus": [ONE, alone, down, lost]}).encode())
    links, itself = split(document, topology.nvlinks.command, gpu.nvml.command)
    assert itself == document
    assert links
    assert parsed(topology.nvlinks, links) == (
        topology.NvLink("GPU-aa", 0, 25.781, "0000:07:00.0", 3),
        topology.NvLink("GPU-aa", 1, None, ""),
    )


@pytest.mark.parametrize(
    "one",
    [
        {key: value for key, value in ONE.items() if key != "nvlinks"},
        {**ONE, "nvlinks": None, "errors": {"nvlinks": "Invalid Argument"}},
        {**ONE, "nvlinks": [{**UP, "mb_s": "25781"}]},
        {**ONE, "nvlinks": [{**UP, "link": "0: 1 GB/s"}]},
        {**ONE, "nvlinks": 7},
        {**ONE, "index": None},
        {**ONE, "name": None},
        {**ONE, "uuid": "GPU-aa) x"},
        {**ONE, "nvlinks": [{**UP, "mb_s": 0}]},
        {**ONE, "nvlinks": [{**UP, "mb_s": 10**400}]},
        {**ONE, "nvlinks": [{**UP, "peer": "\x1b[31m:07:00.0"}]},
        SILENT,
        {**SILENT, "errors": {"gpu": "the process that asked it died"}, "code": None, "hangs": False},
        {**SILENT, "code": 15, "hangs": False},
        [],
    ],
)
def test_links_that_the_document_does_not_tell_are_asked_for_alone(one: object) -> None:
    document = Result(0, json.dumps({"gpus": [one]}).encode())
    assert split(document, gpu.nvml.command, topology.nvlinks.command) == [document, None]


def test_links_without_a_document() -> None:
    bare = Result(1, b"", b"there is no /usr/local/lib/rigwright/gpu_limits.py\n")
    assert split(bare, gpu.nvml.command, topology.nvlinks.command) == [bare, None]
    late = Result(124, b"")
    assert split(late, gpu.nvml.command, topology.nvlinks.command) == [late, late]


@pytest.mark.parametrize(
    "error",
    [
        "driver: no answer within 20 s",
        "driver: no answer; process 7 that asked it still hangs",
        "driver: Driver Not Loaded",
    ],
)
def test_a_driver_that_does_not_answer_nvml_is_not_asked_by_nvidia_smi(error: str) -> None:
    silent = Result(1, b'{"gpus": []}\n', f"{error}\n".encode())
    itself, links = split(silent, gpu.nvml.command, topology.nvlinks.command)
    assert (itself, str(parsed(topology.nvlinks, links or silent))) == (silent, f"NVML: {error}")


def test_the_links_of_a_gpu_that_does_not_answer_in_time_are_not_absent() -> None:
    document = Result(0, json.dumps({"gpus": [ONE, {**SILENT, "code": None, "hangs": True}]}).encode())
    _, links = split(document, gpu.nvml.command, topology.nvlinks.command)
    found = parsed(topology.nvlinks, links or document)
    assert (type(found), str(found)) == (Unavailable, "NVML: no answer within 20 s")


TAG = b"a" * 500_000
DEEP = b"<" + TAG + b">" + b"".join(b"<b%x/>" % number for number in range(20_000)) + b"</" + TAG + b">"
"""An element with a long name and many in it: 10 GB of paths."""
ODD = [
    xml("V100").replace(b' id="00000000:00:00.0"', b""),
    xml("V100").replace(b"V100", b"V100" * 50_000),
    b"0, " + b"x" * 200_000 + b"\n",
    json.dumps({"gpus": [{**ONE, "nvlinks": [{**UP, "mb_s": 10**400}]}]}).encode(),
    json.dumps({"gpus": [{**ONE, "nvlinks": [{**UP, "peer": "\ud800"}]}]}).encode(),
    json.dumps({"gpus": "text"}).encode(),
    b"\n" * (4 << 20),
    xml("V100").replace(b"<product_name>V100</product_name>", DEEP),
    xml("V100").replace(b"</gpu>", b"</gpu>" + b"\t<gpu id='0'/>\n" * 170_000),
    b"[" * 100_000,
    b"here\nhere\nregular|6|\xff\n",
    b"LoadState=\xff\n\n",
]
KINDS: list[tuple[Command, ...]] = [
    (gpu.XML, FIELDS, REST),
    (FIELDS, REST),
    (gpu.nvml.command, topology.nvlinks.command),
    tuple(files.file(name).command for name in ("/a", "/b")),
    tuple(systemd.unit(name).command for name in ("a.service", "b.service")),
    tuple(dpkg.packages(name).command for name in ("a", "b")),
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.one_of(st.binary(max_size=200), st.sampled_from([*ODD, xml("V100"), json.dumps({"gpus": [ONE]}).encode()])),
    st.sampled_from([0, 1, 9, 14, 127]),
    st.integers(0, 3000),
    st.binary(max_size=4),
)
def test_no_answer_of_a_host_raises(commands: tuple[Command, ...], text: bytes, code: int, at: int, put: bytes) -> None:
    [one] = merged_queries.merged(commands)
    for stdout in (text, text[:at] + put + text[at:], text[:at]):
        assert len(one.answers(Result(code, stdout), commands)) == len(commands)


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("commands", KINDS, ids=["xml", "fields", "links", "files", "units", "packages"])
def test_no_odd_answer_raises(commands: tuple[Command, ...], text: bytes) -> None:
    [one] = merged_queries.merged(commands)
    began = time.process_time()
    assert len(one.answers(Result(0, text), commands)) == len(commands)
    assert within(time.process_time() - began, 2)


def test_only_what_is_not_told_is_asked_for_again(tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    told = tmp_path / "told"
    told.write_bytes(xml("V100", **{"P8": "Unknown Error"}))
    smi.write_text(f'#!/bin/sh\necho "$*" >>"$0.calls"\ncase $1 in -q) cat "{told}";; *) echo alone;; esac\n')
    smi.chmod(0o755)

    class WithSmi(Shell):
        def _exchange(self, script: bytes, nonce: str, limit_s: float) -> bytes:
            places = f"PATH={tmp_path}:".encode()
            return super()._exchange(script.replace(b"PATH=", places), nonce, limit_s)

    shell = WithSmi()
    itself, fields, rest = shell.run([gpu.XML, FIELDS, REST], together=True)
    assert (shell.round_trips, itself.code, rest.text) == (2, 0, "alone\n")
    assert fields.text.startswith("0, GPU-0, ")
    calls = Path(f"{smi}.calls")
    assert [call.partition("=")[0] for call in calls.read_text().splitlines()] == ["-q -x", "--query-gpu"]

    calls.unlink()
    told.write_bytes(b"no XML")  # all fields are asked for together, and then each alone
    _, *others = shell.run([gpu.XML, FIELDS, REST, FIELDS], together=True)
    assert [other.text for other in others] == ["alone\n"] * 3
    assert [call.partition("=")[0] for call in calls.read_text().splitlines()] == ["-q -x", *["--query-gpu"] * 3]
    assert shell.round_trips == 2 + 3


def test_units_and_their_files(tmp_path: Path) -> None:
    """Over a systemctl of its own: this machine's processes may run without systemd."""
    (tmp_path / "systemctl").write_text(SYSTEMCTL_RUNNING)
    (tmp_path / "systemctl").chmod(0o755)
    paths = [tmp_path / name for name in ("one", "two", "absent")]
    for path in paths[:2]:
        path.write_text("x")
    asked = [("a.service", paths[:2]), ("b.timer", [paths[1], paths[2]]), ("c.service", [])]
    facts: list[Fact[Any]] = [systemd.running(name, tuple(map(str, of))) for name, of in asked]
    facts.append(systemd.unit("d.timer"))
    commands = tuple(fact.command for fact in facts)
    (one,) = merged_queries.merged(commands)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    split = one.split(alone(one.command, environment), commands)
    together = [parsed(fact, answer) for fact, answer in zip(facts, split, strict=True)]
    single = [parsed(fact, alone(fact.command, environment)) for fact in facts]
    assert together[3] == single[3] == systemd.Unit("loaded", "inactive", "dead", "enabled", False)
    for found, expected in zip(together[:3], single[:3], strict=True):
        assert abs(found.started_s - expected.started_s) < 5
        assert dataclasses.replace(found, started_s=0.0) == dataclasses.replace(expected, started_s=0.0)
    assert [found.active for found in together[:3]] == [True, False, True]
    assert [found.newest_file_s > 0 for found in together[:3]] == [True, True, False]
    assert one.split(Result(0, b"ActiveState=active\n\nnow=1\nup=1\n"), commands) == [None] * 4


SYSTEMCTL_RUNNING = """#!/bin/sh
shift 4  # show -p PROPERTIES --
for unit; do
  case $unit in *.timer) state=inactive; pid=0;; *) state=active; pid=1;; esac
  [ -z "$more" ] || echo
  printf 'LoadState=loaded\\nSubState=dead\\nUnitFileState=enabled\\nActiveState=%s\\nNeedDaemonReload=no\\nMainPID=%s\\nActiveEnterTimestampMonotonic=5000000\\n' $state $pid
  more=y
done
"""


def test_what_is_not_alike_is_not_merged() -> None:
    commands = [
        command("dpkg-query", "-W", "-f", "${Package}\\t${Version}\\n", "--", "a", reads=True),
        command("dpkg-query", "-W", "-f", "${Package}\\t${Architecture}\\n", "--", "a", reads=True),
        script(systemd.STATES, "a", reads=True),
        script(systemd.STATES, "a", reads=True, timeout_s=5),
        script(systemd.STATES, "a b", reads=True),
        script(systemd.STATES, "a"),
        files.file("/a").command,
        script("cat $1", "/a", reads=True),
        gpu.query("--query-compute-apps=pid,process_name"),
        command("date", reads=True),
        command("date", reads=True),
    ]
    assert merged_queries.merged(tuple(commands)) == ()


def test_every_answer_is_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A")
    commands = [
        command("echo", "1", reads=True), files.file(str(tmp_path / "a")).command, dpkg.packages("dpkg").command, command("echo", "2", reads=True),
        files.file(str(tmp_path / "b")).command, dpkg.packages("bash").command, command("sh", "-c", "exit 7", reads=True),
    ]  # fmt: skip
    answers = Shell().run(commands, together=True)
    assert [answer.stdout[:8].split(b"|")[0].split(b"\t")[0].strip() for answer in answers] == [
        b"1", b"regular", b"dpkg", b"2", b"absent", b"bash", b"",
    ]  # fmt: skip
    assert answers[6].code == 7


def test_many_files_are_asked_for_in_parts(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / str(number)).write_text(f"file {number}")
    facts = [files.file(str(tmp_path / str(number))) for number in range(150)]
    answers = Shell().run([fact.command for fact in facts], together=True)
    assert [file.text for fact, answer in zip(facts, answers, strict=True) if (file := parsed(fact, answer))] == [
        f"file {number}" for number in range(150)
    ]

"""The symptoms: every text matches only its own symptom, every Xid has an explanation, mistakes give clear errors."""

from __future__ import annotations

import re
import time

import pytest

from rigwright.catalogue.init_failures import init_failures_in
from rigwright.catalogue.symptoms import all_symptoms, literal, nearest, symptoms_in, xids, xids_in
from tests.machine_speed import within

SYMPTOMS = all_symptoms()
SYMPTOM = pytest.mark.parametrize("key", list(SYMPTOMS))
XIDS = pytest.mark.parametrize("code", list(xids()))
TEXTS = [
    pytest.param(key, text, id=f"{key}-{at}") for key, one in SYMPTOMS.items() for at, text in enumerate(one.texts)
]


@pytest.mark.parametrize(("key", "text"), TEXTS)
def test_a_text_shows_its_own_symptom_and_no_other_alone_and_in_a_log(key: str, text: str) -> None:
    log = f"Linux version 6.8.0-71-generic\n{text}\nusb 1-3: new high-speed USB device number 4\n"
    assert [one.key for one in symptoms_in(text)] == [one.key for one in symptoms_in(log)] == [key]


@SYMPTOM
def test_every_pattern_has_a_text(key: str) -> None:
    one = SYMPTOMS[key]
    idle = [p for p in one.patterns if not any(re.search(p, text, re.IGNORECASE | re.MULTILINE) for text in one.texts)]
    assert idle == []


@SYMPTOM
def test_every_symptom_says_what_to_do(key: str) -> None:
    one = SYMPTOMS[key]
    assert one.key == key
    assert re.fullmatch(r"[a-z0-9]+\.[a-z0-9_]+", key)
    causes = [sentence for cause in one.causes for sentence in (cause.cause, cause.see, cause.fix)]
    assert len(one.causes) != 1
    for sentence in (one.title, one.cause, one.fix, one.source, *causes):
        assert sentence == " ".join(sentence.splitlines()).strip() != ""
        assert not re.search(r"FAILURES|PROCEDURES|captures/|facts/|shared/|\brows? \d|\bTODO\b", sentence)
        if re.search(r"modinfo (?:-\S+ )*nvidia\b", sentence):
            assert "nvidia{,-current,-current-open}" in sentence, "Debian's name of the module"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU 00000000:3C:00.0: Persistence mode is already Enabled.",
        "Power limit for GPU 00000000:3C:00.0 was set to 250.00 W from 300.00 W.",
        "\t\tLnkSta:\tSpeed 8GT/s, Width x16",
        "\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-",
        "iommu: Default domain type: Passthrough (set via kernel command line)",
        "  CNS  = Chipset not supported",
        "    BAR1 Memory Usage\n        Total                             : 32768 MiB",
        "    Fabric\n        State                             : Completed",
        "    Invalid HW Power Brake Slowdown       : Active",
        "12V              | 12.19 Volts       | ok",
        "# Out of bounds values : 0 OK",
        "NCCL version 2.25.10+cuda12.8",
        "pci 0000:85:00.0: BAR 15: no space for [mem size 0x00c00000 64bit pref]",
        "pci 0000:85:00.0: BAR 13: failed to assign [io  size 0x1000]",
        "pci 0000:85:00.0: bridge window [mem size 0x00c00000 64bit pref]: can't assign; no space",
        "pci 0000:3b:00.0: VF BAR 0 [mem size 0x40000000 64bit pref]: can't assign; no space",
        "pci 0000:3b:00.0: BAR 7: no space for [mem size 0x40000000 64bit pref]",
        "pci 0000:c1:00.0: BAR 0: no space for [mem size 0x02000000 64bit pref]",
        "pci 0000:c1:00.0: [15b3:1017] type 00 class 0x020000\n"
        "pci 0000:c1:00.0: BAR 0: no space for [mem size 0x02000000]",
        "pci 0000:0b:00.0: BAR 1: no space for [mem size 0x400000000 64bit pref]\n"
        "pci 0000:0b:00.0: BAR 1: assigned [mem 0x38000000000-0x383ffffffff 64bit pref]",
        "pci 0000:0b:00.0: BAR 1 [mem 0x38000000000-0x383ffffffff 64bit pref]: assigned",
        "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 79",
        "NVRM: Xid (PCI:0000:79:00): 13, pid=79, name=python3, Graphics Exception: ESR 0x504730=0x79",
        "BOOT_IMAGE=/vmlinuz-6.8.0-71-generic root=UUID=0a ro apparmor=none iommu=pt",
        "    Remapped Rows\n        Correctable Error                 : 0\n"
        "        Pending                           : No",
        "DMAR: [DMA Read] Request device [00:02.0] fault addr 9f5bb000 [fault reason 06] PTE Read access is not set",
        "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
        "        Memory Current Temp               : 78 C",
        "GPU Recovery Action                       : None",
        "MIG mode is in pending enable state",
        "    981 root      20   0       0      0      0 S   0.0   0.0   0:00.00 nv_queue",
        "nvidia-fabricmanager: Fabric State Completed",
        " 2e | 11/14/2026 | 21:07:40 | Power Supply #0xc8 | Presence detected | Asserted",
    ],
)
def test_a_healthy_text_shows_nothing(text: str) -> None:
    assert symptoms_in(text) == ()


@SYMPTOM
def test_the_literal_of_a_pattern_is_in_each_text_that_it_matches(key: str) -> None:
    for pattern in SYMPTOMS[key].patterns:
        for text in SYMPTOMS[key].texts:
            if re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
                assert literal(pattern) in text.lower()


@SYMPTOM
def test_no_pattern_backtracks_over_a_long_line(key: str) -> None:
    """On 100 kB that repeat what a pattern begins with, a search takes milliseconds.

    Two seconds are allowed, because a pattern over several lines may look at each line once for each line; one that
    looks at each character once for each character takes half a minute.
    """
    one = SYMPTOMS[key]
    patterns = [*one.patterns, *(pattern for cause in one.causes for pattern in cause.shown_by)]
    for pattern in patterns:
        search = re.compile(pattern, re.IGNORECASE | re.MULTILINE).search
        for part in (literal(pattern) or "x", *(text[:-1].replace("\n", " ") for text in one.texts)):
            for between in (" ", "\n", " " * 1000):
                line = (part[: len(part) * 3 // 4] + between) * (100_000 // (len(part) + len(between)))
                started = time.process_time()
                search(line)
                taken = time.process_time() - started
                assert within(taken, 2), (pattern, part, between)


@pytest.mark.parametrize(
    "line",
    [
        "x" * 1_000_000,
        " " * 1_000_000,
        "NVRM: Xid (PCI:0000:3b:00): 31 " * 32_000,
        "Xid (" * 200_000,
        "0x62:" * 200_000,
        "RmInitAdapter failed! (0x" * 40_000,
        "\n" * 1_000_000,
    ],
    ids=lambda line: repr(line[:8]),
)
def test_a_line_of_a_megabyte_is_searched_quickly(line: str) -> None:
    started = time.process_time()
    symptoms_in(line)
    xids_in(line)
    init_failures_in(line)
    assert within(time.process_time() - started, 5)


def test_what_comes_first() -> None:
    failed, missing = "NVRM: RmInitAdapter failed! (0x26:0x1a:1)", "NVRM: RmFetchGspRmImages: No firmware image found"
    assert [one.key for one in symptoms_in(f"{failed}\n{missing}")] == ["gsp.firmware_missing", "gpu.init_failed"]
    assert [one.key for one in symptoms_in(f"No devices were found\n{failed}")] == ["gpu.init_failed"]
    assert [one.key for one in symptoms_in("No devices were found")] == ["gpu.none"]
    known = SYMPTOMS["gpu.init_memory"]
    assert [shown for _, shown in known.causes_in("(0x24:0x72:1603)")] == [False] * len(known.causes)
    first, shown = known.causes_in("NVRM: BAR1 is 0M @ 0x0 (PCI:0000:0b:00.0)")[0]
    assert (first.cause, shown) == ("The firmware gave the GPU's memory window (BAR1) no address.", True)
    log = "NVRM: Xid (PCI:0000:3b:00): 79, GPU\nNVRM: Xid (PCI:0000:5e:00): 74, NVLink\n"
    assert {one.key for one in symptoms_in(log)} == {"gpu.off_bus", "nvlink.error"}
    assert xids_in(log) == (79, 74)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", (79,)),
        ("NVRM: Xid (PCI:0000:3b:00.0): 79, GPU has fallen off the bus.", (79,)),
        ("NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 02", (149,)),
        ("kernel: NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101", (31,)),
        ("Xid 79", (79,)),
        ("xid:79", (79,)),
        ("XID 79", (79,)),
        ("xid=154", (154,)),
        ("Xid error 13", (13,)),
        ("Xid 48, then Xid 63, then Xid 48", (48, 63)),
        ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48", ()),
        ("NVRM: GPU at PCI:0000:79:00: GPU-00", ()),
        ("Xid 20034", ()),
        ("no code", ()),
    ],
)
def test_xids_in(text: str, codes: tuple[int, ...]) -> None:
    assert xids_in(text) == codes


@XIDS
def test_every_xid_is_explained(code: int) -> None:
    one = xids()[code]
    assert one.code == code
    assert re.fullmatch(r"[A-Z0-9_]+", one.name)
    assert one.do
    assert one.action in ACTIONS
    for sentence in (one.meaning, *one.first_steps, *([one.again] if one.again else [])):
        assert sentence.strip() == sentence != ""
        assert not re.search(r"WORKFLOW|RESTART_|CONTACT_|FAILURES|PROCEDURES|captures|jsonl", sentence)


ACTIONS = {"ignore", "follow_other", "restart_app", "reset_later", "reset", "reboot", "power_cycle"} | {
    "check_power", "check_nvlink", "update", "contact"
}  # fmt: skip


@pytest.mark.parametrize(
    "code", [13, 31, 43, 48, 61, 62, 63, 64, 68, 69, 74, 79, 92, 94, 95, 109, 119, 120, 140, 149, 154]
)
def test_an_important_xid_has_first_steps(code: int) -> None:
    assert xids()[code].first_steps


def test_unused_codes_are_left_out() -> None:
    assert not {1, 12, 14, 47, 65, 91, 108, 138} & set(xids())
    assert {8, 61, 79, 172} <= set(xids())


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("the server just turns off when training starts", "host.power_cut"),
        ("nvidia driver gone after kernel update, module not loaded", "module.not_loaded"),
        ("training hangs, only NCCL_P2P_DISABLE helps", "nccl.p2p_disabled_by_hand"),
        ("one gpu hotter than peers", "thermal.one_hotter"),
        ("nouveau loaded", "module.other_driver_bound"),
    ],
)
def test_the_nearest_of_an_unknown_text(text: str, key: str) -> None:
    assert key in [one.key for one in nearest(text)]


def test_nearest_gives_no_more_than_asked_and_nothing_for_nothing() -> None:
    assert len(nearest("gpu power slowdown memory", 2)) == 2
    assert nearest("qwertyuiop") == ()
    assert nearest("zxcv foo failed: error 0x77") == (), "words that many symptoms have"
    assert nearest("") == ()

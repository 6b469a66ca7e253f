"""The kinds of lines in a pasted text that no reader of a program's output takes."""

from __future__ import annotations

import re

from rigwright.core import lazy_re

_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|FATAL|CRITICAL)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAY = rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_MONTH} +\d+ [\d:]{{8}}"
_ISO = r"\d{4}-\d\d-\d\dT"
KINDS = (
    ("a kernel log", lazy_re.compile(
        r"^(?:<\d{1,3}>|[a-z\d]{2,8} *:[a-z]{3,6} *: ?)?\[ *\d{1,9}\.\d{3,6}\]|\bkernel: |\bNVRM: |SXid \("
        rf"|\bnvidia-(?:peermem|nvswitch)\d{{0,2}}: |^{_ISO}[\d:]{{8}},\d{{6}}\S* |^{_ISO}[\d:,.+]+ .*\bXid\b"
        rf"|^\[{_DAY} \d{{4}}\]|^(?:Panic|Oops|Emergency)#\d{{1,6}}|^\s{{0,4}}(?:---\[ end )?Kernel panic - not")),
    ("an NCCL log", lazy_re.compile(r"\bNCCL (?:INFO|WARN|version)\b|Channel \d+(?:/\d+)? : \d+\[")),
    ("an error of nvidia-smi", lazy_re.compile(
        r"Unable to determine the device handle|NVIDIA-SMI (?:has failed|couldn't)|Failed to initialize NVML"
        r"|^No devices (?:were )?found|^NVML library version: ")),
    ("nvidia-smi -L", lazy_re.compile(r"^\s*GPU \d{1,3}: .{1,80}\(UUID: (?:GPU|MIG)-")),
    ("a system log", lazy_re.compile(
        rf"^(?:{_MONTH} [ \d]\d [\d:]{{8}}|{_ISO}[\d:]{{8}}\S*) \S{{1,80}} [\w@./():-]{{1,80}}(?:\[\d+\])?: ")),
    ("messages of apt and dpkg", lazy_re.compile(
        r"^(?:E|W|N|dpkg|Start-Date|Commandline|Upgrade|Install|Remove|Purge|End-Date|update-initramfs): "
        r"|^(?:Err|Get|Hit|Ign):\d|^(?:Preparing to unpack|Unpacking|Setting up|Selecting previously|Fetched"
        r"|Processing triggers|Reading (?:package|state)|Building dependency|After this op|Need to get|Do you want"
        r"|Errors were encountered|The following (?:\w+ )?packages|Some packages could|\d+ upgraded)\b"
        r"|^.{1,60} : (?:Pre)?Depends: |^ +Depends: ")),
    ("messages of a build", lazy_re.compile(
        r"^make(?:\[\d+\])?: |^ {2}(?:CC|LD|AR|MODPOST|CONFTEST)\b|\.[cho]:\d+:(?:\d+:)? |^\S+\.o: |^ +\d* \| "
        r"|dkms|DKMS")),
    ("a program's log", lazy_re.compile(
        rf"(?:^|\s|\[|\))(?:{_LEVEL})\b|\blevel=\w|^[\w.]{{1,60}}(?:Error|Exception|Warning)\b|Warning: "
        r"|^(?:\[rank\d+\]:?|\(\w+ pid=\d+\)) ?")),
)  # fmt: skip
"""By name how a line of this kind is recognised; the first that fits counts."""
SILENT = lazy_re.compile(
    r"^\s*(?:[\w.-]{1,40}@[\w.-]{1,60}[: ][^$#]{0,120}[$#]|\([\w./-]{1,40}\) \S{1,80}[$#]|[$#>%](?:\s|$)|\+ \S)"
    rf"|^{_DAY}|^Linux \S+ \d+\.\d+\.|^BOOT_IMAGE=|^-{{2,}}[\w -]*-*$|^(?:> ?)?[-=*#~_+| ]{{3,}}$|^```"
    r"|^(?:nvidia|nouveau)\w* +\d+ +\d+|^nvidia\S*, \d+\.\d+\S*, \w+: (?:installed|added|built)"
)
"""Lines that are no error: prompts with a command, dates, rules, `uname -a`, `lsmod`, `dkms status`."""
ERROR = lazy_re.compile(
    r"(?:error|exception|warning)s?\b(?![=\w])|\b(?:warn|fail(?:ed|ure|s|ing)?|fatal|panic(?!=)|oops|bug:|unable|cannot"
    r"|can't|could ?n[o']t|refused|denied|abort(?:ed|ing)?"
    r"|segfault|critical|timed? ?out|corrupt(?:ed|ion)?|hung|rejected|invalid)\b"
    r"|\bE: |:(?:emerg|alert|crit|err) *:|level=(?:error|fatal)",
    re.IGNORECASE,
)
"""Words of a line that is an error, whether the catalogue knows it or not."""
NO_ERROR = lazy_re.compile(
    r"\[Hardware Error\]: |BERT: Error records|error status/mask=|^Panic#|^make|\b(?:0|no|without) (?:errors?|fail)"
    r"|errors?: +0\b",
    re.IGNORECASE,
)
"""Lines that are no error in spite of such words, and those of a record of the hardware, which symptoms explain."""

"""The inventory variables of rigwright as types; they describe the desired state of a host."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal, get_args, get_type_hints

from msgspec import Struct, field
from msgspec.structs import force_setattr

from rigwright.core import features
from rigwright.core.mig import Mig
from rigwright.core.schema import BusId, KernelWord, Release
from rigwright.core.yaml_source import did_you_mean

SecureBoot = Literal["enrol", "trusted"]
"""With Secure Boot on: rigwright enrols DKMS' key with a person at the console, or the owner has done it."""
CpuGovernor = Literal["performance", "powersave", "schedutil", "ondemand", "conservative", "userspace"]
"""The frequency governors of Linux."""

SOURCES = ("auto", "distribution", "cuda", "ubuntu-server")
"""The sources of a driver that have a name."""


class Driver(Struct, frozen=True):
    """A driver branch ('535'), or one `version` of it.

    `source`: auto, distribution, cuda, ubuntu-server (what `ubuntu-drivers install --gpgpu nvidia:535-server`
    installs), or a directory of .deb files on the host.
    `flavour` of the kernel module: auto (the flavour that the GPUs need), proprietary, or open.
    `modules`: with dkms the host builds the module; with prebuilt the module is Ubuntu's signed package, and the kernel
    is held at its version; auto selects prebuilt with Secure Boot on, otherwise dkms.
    `display`: True for the full set of packages, with the libraries for X, Wayland, OpenGL and video; False for the
    compute set; None for the compute set, or the set that is pinned already.
    `kernel_ceiling`: where DKMS builds the module, apt installs no kernel newer than the newest for which the driver is
    known to build.
    """

    branch: str
    version: str = ""
    source: str = "auto"
    flavour: Literal["auto", "proprietary", "open"] = "auto"
    modules: Literal["auto", "dkms", "prebuilt"] = "auto"
    display: bool | None = None
    kernel_ceiling: bool = True

    def __post_init__(self) -> None:
        if self.source not in SOURCES and not re.fullmatch(r"/[^\s'\"]+", self.source):
            hint = did_you_mean(self.source, SOURCES)
            raise ValueError(
                f"source '{self.source}'{hint}", f"{', '.join(SOURCES)}, or a directory on the host that begins with /"
            )
        if self.modules == "prebuilt" and self.source == "cuda":
            raise ValueError(
                "modules prebuilt, source cuda",
                "NVIDIA's repository has none: source auto, distribution or ubuntu-server",
            )
        if self.branch.count(".") and not self.version:
            force_setattr(self, "version", self.branch)
        force_setattr(self, "branch", self.branch.split(".")[0])
        if not re.fullmatch(r"\d{3}", self.branch) or (
            self.version and not re.fullmatch(rf"{self.branch}(\.\d+)+", self.version)
        ):
            problem = f"branch '{self.branch}'" + (f", version '{self.version}'" if self.version else "")
            raise ValueError(
                problem,
                "a branch such as '535', or a version of it such as '535.183.01'",
                "invoke explain GPU, such as rtx-3090, names the branches that support it",
            )


class Cuda(Struct, frozen=True):
    """The CUDA toolkit ('12.2') that is the default of the host, and others beside it."""

    toolkit: Release
    beside: tuple[Release, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.toolkits)) < len(self.toolkits):
            raise ValueError(f"beside {list(self.beside)}", f"other toolkits than {self.toolkit}, each once")

    @property
    def toolkits(self) -> tuple[Release, ...]:
        """All toolkits, the default first."""
        return (self.toolkit, *self.beside)


class CudaSource(Struct, frozen=True):
    """A repository with the layout of NVIDIA's, such as a mirror. Its key must have the given fingerprint."""

    url: str
    key: str = ""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(https?|file)://[^\s'\"]+", self.url):
            raise ValueError(f"url '{self.url}'", "http://..., https://... or file:///...")
        force_setattr(self, "fingerprint", self.fingerprint.replace(" ", "").upper())
        if self.fingerprint and not re.fullmatch(r"[0-9A-Fa-f]{40}", self.fingerprint):
            raise ValueError(f"fingerprint '{self.fingerprint}'", "40 hexadecimal digits, without spaces")


class Clocks(Struct, frozen=True):
    """Application clocks in MHz: the two arguments of `nvidia-smi -ac MEMORY,GRAPHICS`."""

    memory_mhz: int
    graphics_mhz: int

    def __post_init__(self) -> None:
        if self.memory_mhz <= 0 or self.graphics_mhz <= 0:
            raise ValueError(f"{self.memory_mhz},{self.graphics_mhz} MHz", "two clocks in MHz, such as 877 and 1005")


class GpuLimits(Struct, frozen=True):
    """The limits of a GPU. A limit of None is not changed. A locked clock is a range [min, max] in MHz."""

    persistence: bool | None = None
    power_limit_w: int | None = None
    application_clocks: Clocks | None = None
    locked_graphics_mhz: tuple[int, int] | None = None
    locked_memory_mhz: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.power_limit_w is not None and not 0 < self.power_limit_w <= 2000:
            raise ValueError(f"power_limit_w {self.power_limit_w}", "watts of one GPU, such as 200")
        for name in ("locked_graphics_mhz", "locked_memory_mhz"):
            span = getattr(self, name)
            if span is not None and not 0 < span[0] <= span[1] <= 20000:
                raise ValueError(f"{name} {list(span)}", "[min, max] in MHz, such as [210, 1400]")

    def over(self, below: GpuLimits) -> GpuLimits:
        """These limits, with each None replaced by the value from `below`."""
        own = ((name, getattr(self, name)) for name in _OF_A_GPU)
        return GpuLimits(*(getattr(below, name) if value is None else value for name, value in own))


_OF_A_GPU = GpuLimits.__struct_fields__


class Limits(GpuLimits, frozen=True):
    """The limits of all GPUs of a host. `gpus` has exceptions by model (rtx-3090), position or UUID.

    For each limit the most specific value applies: UUID, then position, then model, then the limits of the host.
    """

    gpus: dict[str, GpuLimits] = field(default_factory=dict)

    def of(self, *names: str) -> GpuLimits:
        """The limits of a GPU with these names, the least specific first (model, position, UUID)."""
        limits: GpuLimits = GpuLimits().over(self)
        for name in names:
            if name in self.gpus:
                limits = self.gpus[name].over(limits)
        return limits


class Ecc(Struct, frozen=True):
    """Whether the memory of the GPUs is protected by ECC: `enabled` of all, None: only of those in `gpus`, which has
    exceptions by model, position or UUID.

    The most specific value counts: UUID, then position, then model, then `enabled`.
    """

    SHORT: ClassVar[str] = "enabled"
    FORM: ClassVar[str] = "true, false, or {enabled: true, gpus: {POSITION: false}}"
    enabled: bool | None = None
    gpus: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.enabled is None and not self.gpus:
            raise ValueError("neither enabled nor gpus", "ecc: true, ecc: false, or {gpus: {POSITION: true}}")

    def of(self, *names: str) -> bool | None:
        """Whether a GPU with these names, the least specific first, is to have ECC; None: it is left alone."""
        wanted = self.enabled
        for name in names:
            wanted = self.gpus.get(name, wanted)
        return wanted


class Reboot(Struct, frozen=True):
    """How a host is rebooted.

    `trial`: None: a new boot is tried once if the host's GRUB can do that; True: a host whose GRUB cannot is refused;
    False: no boot is tried. `confirm_within_s`: a tried boot must be healthy within so many seconds from the
    start of systemd; otherwise the host goes back.
    """

    trial: bool | None = None
    confirm_within_s: int = 600

    def __post_init__(self) -> None:
        if not 30 <= self.confirm_within_s <= 7200:
            raise ValueError(f"confirm_within_s {self.confirm_within_s}", "30 to 7200 seconds, such as 600")


MOST_OPEN_FILES = 1 << 30
"""The most that Linux allows for fs.nr_open on 64-bit machines is 2147483584."""


class Ulimits(Struct, frozen=True):
    """Limits of processes after a login, and of services; None: left alone. `memlock`: memory that a process may lock,
    which NCCL needs unlimited over InfiniBand. `nofile`: open files."""

    memlock: Literal["unlimited"] | None = None
    nofile: int | None = None

    def __post_init__(self) -> None:
        if self.memlock is None and self.nofile is None:
            raise ValueError("neither memlock nor nofile", "{memlock: unlimited, nofile: 1048576}, or one of them")
        if self.nofile is not None and not 1024 <= self.nofile <= MOST_OPEN_FILES:
            raise ValueError(f"nofile {self.nofile}", "1024 open files and more, such as 1048576")


class Hugepages(Struct, frozen=True):
    """`count`: reserved huge pages of 2 MiB on x86-64. `transparent`: the kernel's own use. None: left alone."""

    count: int | None = None
    transparent: Literal["always", "madvise", "never"] | None = None

    def __post_init__(self) -> None:
        if self.count is None and self.transparent is None:
            raise ValueError("neither count nor transparent", "{count: 1024}, {transparent: madvise}, or both")
        if self.count is not None and not 0 <= self.count <= 10_000_000:
            raise ValueError(f"count {self.count}", "0 or more pages, such as 1024")


MOST_REASON = 200
"""Characters of the reason for which a warning is accepted."""


class Acceptance(Struct, frozen=True):
    """The owner knows a warning and accepts it through the day `until`. `only`: words of the findings' subjects, such
    as positions of GPUs; (): all findings of that name."""

    FORM: ClassVar[str] = '{until: 2027-03-01, because: "a reason"}'
    until: datetime.date
    because: str
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.because.strip() or "\n" in self.because or len(self.because) > MOST_REASON:
            expected = f"a reason in one line of at most {MOST_REASON} characters"
            raise ValueError(f"because {self.because[:20]!r}", expected)


class Desired(Struct, frozen=True):
    """The variables of rigwright that the inventory sets for one host; None for a variable that is not set.

    A parameter of an operation or check with the name of a field gets the field's value, unless the task sets it. `rig`
    is the name of a machine in the catalogue; a parameter `rig` gets it, and `slots` (positions by bus id) and
    `expected_gpus` have their defaults from it. `of_features`: the variables that features declare, by name.
    """

    rig: str | None = None
    driver: Driver | None = None
    cuda: Cuda | None = None
    kernel_cmdline: tuple[KernelWord, ...] | None = None
    limits: Limits | None = None
    cuda_repository: CudaSource | None = None
    slots: dict[BusId, str] | None = None
    ssh_known_hosts: str | None = None
    p2p_wheels: str | None = None
    expected_gpus: int | None = None
    secure_boot: SecureBoot | None = None
    reboot: Reboot | None = None
    ecc: Ecc | None = None
    mig: Mig | None = None
    cpu_governor: CpuGovernor | None = None
    ulimits: Ulimits | None = None
    hugepages: Hugepages | None = None
    accepted: dict[str, Acceptance] | None = None
    of_features: Mapping[str, Any] = field(default_factory=dict)


VARIABLES = tuple(name for name in Desired.__struct_fields__ if name != "of_features")
"""The names of the inventory variables that rigwright knows, without those of features."""


@cache
def variable_names() -> tuple[str, ...]:
    """The names of all inventory variables that rigwright and its features know."""
    return (*VARIABLES, *features.variables())


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Desired)


@cache
def variable_type(name: str) -> Any:
    """The type of a variable, without None."""
    if feature := features.variables().get(name):
        return features.part(feature, "variables").TYPES[name]
    return next(kind for kind in get_args(_hints()[name]) if kind is not type(None))

"""What a person does about Secure Boot."""

from __future__ import annotations

from rigwright.core.desired import Driver
from rigwright.facts.system import OsRelease

NOT_TRUSTED = "Secure Boot is on: it refuses a driver module that is built on the host"

PASSWORD = "mok_password: !secret {env: MOK_PASSWORD}"
"""The line of an inventory with the one-time password."""

CONSOLE = (
    "at the machine's console, or its BMC's remote console, not over ssh: sudo reboot; within a minute press any key "
    "at 'Press any key to "
    "perform MOK management'; Enroll MOK; Continue; Yes; type the one-time password (mok_password; the keyboard is a "
    "US one); Reboot. "
    "Then run the same command again, which goes on with the driver"
)
"""The step at the console, in the words of MokManager's screens."""


def steps(release: OsRelease, driver: Driver | None, host: str = "this host") -> str:
    """The ways to a driver under Secure Boot, the shortest first."""
    prebuilt = "driver: {modules: auto} takes Ubuntu's signed module; or " if driver and release.id == "ubuntu" else ""
    return (
        f"{prebuilt}turn Secure Boot off in the firmware; or enrol a key: set secure_boot: enrol and {PASSWORD} for "
        f"{host} in the "
        "inventory; export MOK_PASSWORD=... (8 to 16 letters and digits, typed once at the console); then the same "
        "command, which makes "
        "the key, stages it before the driver, and says what to do at the console"
    )

"""The machine is a desktop: a display manager starts at boot, alice works under Wayland, and from the next boot on a
GPU has the screen.

loginctl lists the session until the reboot, systemctl status display-manager says active; after the next boot lspci
shows no ASPEED, and boot_vga of the first GPU with connectors is 1. Healed, the management controller is there again
after another boot.
"""

from __future__ import annotations

from lab.faults import tamper
from lab.host import inside
from lab.host.disk import Host

NEEDS: tuple[str, ...] = ("gpu",)
ONE_GPU = False
LASTS: int | None = None

UNIT = """[Unit]
Description=GNOME Display Manager (stand-in)
[Service]
ExecStart=/usr/bin/sleep infinity
[Install]
Alias=display-manager.service
WantedBy=graphical.target
"""
LOGINCTL = """#!/bin/sh
# Stands in for loginctl: the hosts have no PAM session of a desktop. The session ends with the boot.
# systemd-logind has a file for each session in /run/systemd/sessions.
[ -e /run/desktop-session ] || exit 0
case "$1" in
    list-sessions) echo ' 2 1001 alice seat0 tty2' ;;
    show-session) printf 'Name=alice\\nType=wayland\\nClass=user\\nSeat=seat0\\nState=active\\n' ;;
esac
"""
PUT = """
printf '%s' "$1" >/etc/systemd/system/gdm.service
printf '%s' "$2" >/usr/local/sbin/loginctl
chmod 755 /usr/local/sbin/loginctl
: >/run/desktop-session
mkdir -p /run/systemd/sessions
: >/run/systemd/sessions/2
systemctl daemon-reload
systemctl -q enable --now gdm.service
systemctl -q set-default graphical.target
"""
TAKE = """
systemctl -q disable --now gdm.service
rm -f /etc/systemd/system/gdm.service /usr/local/sbin/loginctl /run/desktop-session /run/systemd/sessions/2
systemctl daemon-reload
systemctl -q set-default multi-user.target
"""


def apply(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.at_next_boot(host, "management.absent", "1")
    inside.run(host, PUT, UNIT, LOGINCTL)


def heal(host: Host, gpu: int) -> None:  # noqa: ARG001
    tamper.at_next_boot(host, "management.absent", "")
    inside.run(host, TAKE)

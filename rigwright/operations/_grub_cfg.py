"""The command that makes /boot/grub/grub.cfg again."""

from __future__ import annotations

from rigwright.core.command import Command, script

_UPDATE = """
cfg=$(readlink -m /boot/grub/grub.cfg); new=$cfg.rigwright
rm -f -- "$new"
update-grub -o "$new"; code=$?
if [ $code = 0 ] && [ -s "$new" ]; then  # one that takes no options has written grub.cfg itself
  if [ -e "$cfg" ]; then chown --reference="$cfg" -- "$new" && chmod --reference="$cfg" -- "$new" || code=$?; else chmod 0444 -- "$new"; fi
  [ $code = 0 ] && sync -- "$new" && mv -fT -- "$new" "$cfg" && sync -- "${cfg%/*}" || code=1
fi
rm -f -- "$new" "$new.new"
exit $code
"""


def update_grub() -> Command:
    """A job that makes grub.cfg and puts it in the place of the old one as a whole, synced.

    update-grub alone writes over the old file: a power cut then leaves a host without a menu.
    """
    return script(_UPDATE, timeout_s=600, long=True)

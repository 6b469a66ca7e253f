"""Operations of `playbooks/rollback.yml`."""

from __future__ import annotations

from rigwright.features.rollback.operations.files import (
    apt_rules,
    boot_files,
    files,
    module_built,
    possible,
    rebooted,
    units_started,
    units_stopped,
)
from rigwright.features.rollback.operations.limits import limits_restored
from rigwright.features.rollback.operations.packages import (
    dpkg_whole,
    holds_freed,
    package_marks,
    package_versions,
    packages_possible,
)

# shellcheck shell=sh
# Sourced by demo and test: what this machine has and lacks, and who the user is. Run from the root of the checkout.

# What the lab and .venv need of the machine. tests/test_scripts.py compares it with what the lab itself asks for.
PACKAGES='apt-utils coreutils debootstrap dpkg gcc gnupg iproute2 libc6-dev mount openssh-client
python3 python3-venv systemd-container util-linux zstd'

# What the tests need beside that: the report page is looked at in a real browser.
TEST_PACKAGES='chromium'

RECORD=.lab/installed-packages

# Ends the script unless it runs as root. $1: the line to type instead.
need_root() {
    [ "$(id -u)" = 0 ] || {
        echo "error $0: simulated hosts need root (mounts, network namespaces)" >&2
        echo "  do:     $1" >&2
        exit 1
    }
}

# The person who called sudo, or root where root itself calls.
user() {
    case "${SUDO_USER:-}" in
        '' | -* | *[!a-zA-Z0-9._-]*) echo root ;;
        *) echo "$SUDO_USER" ;;
    esac
}

# Runs a command as that person, with that person's home.
as_user() {
    if [ "$(user)" = root ]; then
        "$@"
    else
        runuser -u "$(user)" -- env HOME="$(getent passwd "$(user)" | cut -d: -f6)" "$@"
    fi
}

# What root made in the checkout belongs to that person; silent, because it may run after the last line of output.
# Not into .lab: there the lab itself sees to it, and disks of simulated hosts keep their owners.
give_back() {
    [ "$(user)" = root ] || find . -path ./.lab -prune -o -user root -exec chown -h "$(user):" {} + 2>/dev/null || :
}

# Those of $PACKAGES, and of the words given, that are not installed, on one line.
missing_packages() {
    for package in $PACKAGES "$@"; do
        case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) in
            installed) ;;
            *) printf '%s ' "$package" ;;
        esac
    done
}

# Installs packages, says what apt says only if it fails, and records which packages were not there before.
install_packages() {
    log=$(mktemp)
    before=$(mktemp)
    installed_packages >"$before"
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
    # shellcheck disable=SC2086
    if ! { apt-get -q -o DPkg::Lock::Timeout=600 update &&
        apt-get -q -y -o DPkg::Lock::Timeout=600 install --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        rm -f "$log" "$before"
        echo "error apt-get install $*: see above" >&2
        exit 1
    fi
    as_user mkdir -p .lab
    { cat "$RECORD" 2>/dev/null || :; installed_packages | comm -13 "$before" -; } | sort -u >"$RECORD.new"
    mv "$RECORD.new" "$RECORD"
    chown "$(user):" "$RECORD"
    rm -f "$log" "$before"
}

installed_packages() {
    dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' | sed -n 's/^installed //p' | LC_ALL=C sort
}

need_debian() {
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        echo "error $0: the lab runs on Debian and Ubuntu; this machine has no apt-get" >&2
        echo "  do:     run it on one of them, or in a virtual machine; scripts/setup and your own servers work from here" >&2
        exit 1
    fi
}

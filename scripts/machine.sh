# shellcheck shell=sh
# Functions for scripts/demo and scripts/test: system packages and the calling user. Source it from the checkout's root.

# System packages for the lab and .venv. tests/test_scripts.py compares the list with the lab's own.
PACKAGES='apt-utils coreutils debootstrap dpkg gcc gnupg iproute2 libc6-dev mount openssh-client
python3 python3-venv systemd-container util-linux zstd'

# Additional packages for the tests: a browser for the report pages, zsh for its completion script.
TEST_PACKAGES='chromium zsh'

RECORD=.lab/installed-packages

# Exits with an error unless the script runs as root. $1: the command to suggest.
need_root() {
    [ "$(id -u)" = 0 ] || {
        echo "error $0: simulated hosts need root (mounts, network namespaces)" >&2
        echo "  fix:      $1" >&2
        exit 1
    }
}

# Prints the user who called sudo, or root.
user() {
    case "${SUDO_USER:-}" in
        '' | -* | *[!a-zA-Z0-9._-]*) echo root ;;
        *) echo "$SUDO_USER" ;;
    esac
}

# Runs a command as that user, with the user's home directory.
as_user() {
    if [ "$(user)" = root ]; then
        "$@"
    else
        runuser -u "$(user)" -- env HOME="$(getent passwd "$(user)" | cut -d: -f6)" "$@"
    fi
}

# Changes the owner of files that root made in the checkout to that user, without output. Skips .lab, whose owners the
# lab sets: disks of simulated hosts must keep theirs.
give_back() {
    [ "$(user)" = root ] || find . -path ./.lab -prune -o -user root -exec chown -h "$(user):" {} + 2>/dev/null || :
}

# Prints those of $PACKAGES and of the arguments that are not installed, on one line.
missing_packages() {
    for package in $PACKAGES "$@"; do
        case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) in
            installed) ;;
            *) printf '%s ' "$package" ;;
        esac
    done
}

# Installs packages and records the new ones in $RECORD. Shows apt's output only if it fails.
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
        echo "  fix:      run it on one of them, or in a virtual machine; scripts/setup and your own servers work from here" >&2
        exit 1
    fi
}

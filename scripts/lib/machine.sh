# shellcheck shell=sh
# Functions for scripts/demo and scripts/test: who may change what root runs, system packages, and the record of what was made.
# Source it from the checkout's root.

# System packages for the lab and .venv. tests/test_scripts.py compares the list with the lab's own.
PACKAGES='apt-utils coreutils dpkg gcc gnupg iproute2 libc6-dev mmdebstrap mount openssh-client
python3 python3-venv systemd-container util-linux zstd'

# Additional packages for the tests: a browser for the report pages, sfdisk for partition tables, zsh for its completion script.
TEST_PACKAGES='chromium fdisk zsh'

# Additional packages for virtual machines: QEMU, its firmware, file systems of images, and a compiler's tools for the simulated GPU.
VM_PACKAGES='dosfstools dpkg-dev e2fsprogs fdisk ovmf patch qemu-system-x86 qemu-utils xz-utils'

# Root's records of what scripts/demo and scripts/test installed and made, a file for each checkout. Nobody else can write there.
RECORDS=/var/lib/rigwright-demo

# What scripts/demo makes in the checkout, and may therefore remove.
MADE='.lab .venv rigwright.egg-info'

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
        '' | -* | *[!a-zA-Z0-9@+._-]*) echo root ;;
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
# lab sets: disks of simulated hosts must keep theirs. Follows no link, also if a folder becomes one meanwhile, and skips a
# file that has a second name.
give_back() {
    [ "$(user)" = root ] || find . -path ./.lab -prune -o -user root \( -type d -o -links 1 \) \
        -execdir chown -h "$(user):" {} + 2>/dev/null || :
}

# Exits with an error unless root and the calling user are the only ones who can change what root runs from this checkout and
# where it writes. A group may write if nobody else is in it.
need_own_checkout() {
    umask 022
    owners=root
    [ "$(user)" = root ] || owners="root and $(user)"
    for tool in find getent namei readlink realpath stat; do
        command -v $tool >/dev/null || refuse_checkout "$tool is missing" 'sudo apt-get install coreutils findutils libc-bin util-linux'
    done
    id -u "$(user)" >/dev/null 2>&1 || refuse_checkout "there is no user $(user), whom SUDO_USER names" 'call it with sudo'
    found=$(link_in_the_way)
    if [ -n "$found" ]; then
        refuse_checkout "$found is a symbolic link; root would write through it" "rm $(pwd -P)/$found"
    fi
    # Everything is fine only if all three come to their end and have nothing to say.
    found=$({ set +e; others_below .; others_above .; others_behind_links; echo nothing; } | head -n 1 | harmless)
    if [ "$found" != nothing ]; then
        refuse_checkout "root would run this checkout, but $found" \
            "clone the repository again, into a folder that only $(user) can write; if you trust the files: chown, chmod go-w"
    fi
}

refuse_checkout() {
    echo "error $0: $1" >&2
    echo "  expected: only $owners can change the files in $(pwd -P) and the folders above it" >&2
    echo "  fix:      $2" >&2
    exit 1
}

# Replaces what is not printable ASCII: a name may contain anything.
harmless() { LC_ALL=C tr -c '[:print:]\n' '?'; }

# Prints the first link in places in which root writes or that it removes.
link_in_the_way() {
    find $MADE .lab/* -maxdepth 0 -type l 2>/dev/null | head -n 1 | harmless
}

# True if nobody but root and the user is in the group. $1: its number or name
only_ours() {
    entry=$(getent group "$1") || return 1
    members=$(echo "$entry" | cut -d: -f4 | tr , '\n')
    primary=$(getent passwd | awk -F: -v gid="$(echo "$entry" | cut -d: -f3)" '$4 == gid && $3 != 0 { print $1 }')
    for member in $members $primary; do
        case $member in root | "$(user)") ;; *) return 1 ;; esac
    done
}

# Prints what somebody else can change of a folder with all that is in it, and of .lab the upper two levels.
others_below() {
    for places in '-path ./.lab -prune -o' '-path ./.lab/*/* -prune -o -path ./.lab* '; do
        # shellcheck disable=SC2086
        (
            set -f
            find "$1" $places ! -uid 0 ! -uid "$(id -u "$(user)")" -printf '%p belongs to %u\n'
            find "$1" $places ! -type l -perm -002 -printf 'everybody can write %p\n'
            find "$1" $places ! -type l -perm -020 -printf '%G the group %g can write %p\n' | sort -n | others_in_groups
            find "$1" $places ! -type l -perm -020 -exec ls -ld {} + | sed -n 's/^[^ ]*+ .* \([^ ]*\)$/an access control list is on \1/p'
        )
    done
}

# Reads lines of a group and a text; prints the texts of the groups in which others are.
others_in_groups() {
    seen=
    while read -r group text; do
        [ "$group" = "$seen" ] || { seen=$group; only_ours "$group" && ours=1 || ours=; }
        [ -n "$ours" ] || echo "$text"
    done
}

# Prints what somebody else can change on the way to a path: each folder and each link. In a folder with the sticky bit
# others cannot replace a file that is not theirs.
others_above() {
    namei -l "$(realpath -s "$1")" 2>/dev/null | while read -r mode owner group name; do
        case "$mode $owner" in 'f: '* | *' -') continue ;; esac # the path itself, and a part of it that does not exist
        case $owner in root | "$(user)") ;; *) echo "$name, on the way to $(realpath -s "$1"), belongs to $owner" ;; esac
        case $mode in
            l* | d????????[tT]*) ;;
            ????????w*) echo "everybody can write $name, on the way to $(realpath -s "$1")" ;;
            ?????w*) only_ours "$group" || echo "the group $group can write $name, on the way to $(realpath -s "$1")" ;;
        esac
    done
}

# Prints what somebody else can change of that to which links lead.
others_behind_links() {
    find . -path ./.lab -prune -o -type l -print | while read -r link; do
        others_above "$link"
        target=$(readlink -f "$link") || continue
        case $target/ in
            "$(pwd -P)"/*) ;;
            *) [ ! -d "$target" ] || others_below "$target" ;;
        esac
    done
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

# Installs packages and records the new ones, also if apt fails. Shows apt's output only if it fails.
install_packages() {
    log=$(mktemp)
    before=$(mktemp)
    installed_packages >"$before"
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
    failed=
    { apt-get -q -o DPkg::Lock::Timeout=600 update &&
        apt-get -q -y -o DPkg::Lock::Timeout=600 install --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null || failed=1
    # shellcheck disable=SC2046
    record package $(installed_packages | comm -13 "$before" -)
    [ -z "$failed" ] || tail -n 20 "$log" >&2
    rm -f "$log" "$before"
    if [ -n "$failed" ]; then
        echo "error apt-get install $*: see above" >&2
        exit 1
    fi
}

# The file of $RECORDS for this checkout.
record_file() { echo "$RECORDS/$(pwd -P | sha256sum | cut -c1-16)"; }

# Adds names to the record. $1: package or folder
record() {
    own_record
    kind=$1
    shift
    mkdir -p "$RECORDS"
    file=$(record_file)
    [ -e "$file" ] || pwd -P | sed 's/^/# /' >"$file"
    for name; do
        grep -qxF "$kind $name" "$file" || echo "$kind $name" >>"$file"
    done
}

# Prints the recorded names of a kind. $1: package or folder
recorded() {
    own_record
    [ ! -e "$(record_file)" ] || sed -n "s/^$1 //p" "$(record_file)"
}

# Exits with an error if the record is not root's alone, or names anything but packages and what scripts/demo makes here.
own_record() {
    file=$(record_file)
    for path in "$RECORDS" "$file"; do
        [ -e "$path" ] || [ -L "$path" ] || continue
        case $(LC_ALL=C stat -c '%u %F %A' "$path") in
            '0 directory '?????-??-* | '0 regular file '?????-??-* | '0 regular empty file '?????-??-*) ;;
            *) refuse_record "$path is not root's alone" ;;
        esac
    done
    [ -e "$file" ] || return 0
    while read -r kind name; do
        case $kind in
            '#') continue ;;
            package) case $name in [a-z0-9]*) case $name in *[!a-z0-9+.:-]*) ;; *) continue ;; esac ;; esac ;;
            folder) case " $MADE " in *" $name "*) continue ;; esac ;;
        esac
        refuse_record "$file names $(echo "$kind $name" | harmless)"
    done <"$file"
}

refuse_record() {
    echo "error $0: $1; nothing was removed" >&2
    echo "  expected: a file of root with packages, and folders among $MADE" >&2
    echo "  fix:      sudo rm -r $RECORDS; then remove .lab, .venv and packages yourself" >&2
    exit 1
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

"""The shell functions that record on a host what was there before a run changes it; facts/run_record.py reads it."""

from __future__ import annotations

from rigwright.core.templates.host_files import HOST_FILES
from rigwright.facts.apt.dpkg import LISTED
from rigwright.facts.gpu.gpus import LOCKED_FILE
from rigwright.facts.kernel import MODINFO
from rigwright.facts.run_record import LISTS, STATE_OF, TEXTS

_MOST_FILES, _MOST_FILE_BYTES, _MOST_BYTES = 400, 1 << 20, 16 << 20
"""Files that a record begins with, and the size of one file and of all files whose content is recorded."""
KEPT_RUNS = 20
"""The number of the last runs that changed the host, and of other runs, which stay in /var/lib/rigwright/runs."""

KEEP = (
    STATE_OF
    + r"""
record=/var/lib/rigwright/runs/${RIGWRIGHT_RUN:-none}/record
kept() {  # FILE PATH: adds to the record of this run what stands there, once
  [ -d "$record" ] || return 0
  ! cut -f 5- "$record/files" | grep -qxF -e "$2" || return 0
  was=$(state "$1" "$2")
  case $was in
  file*) was_mode=0$(printf %s "$was" | cut -f 2)
    was_size=$(stat -c %s -- "$1")
    if [ $((was_mode & 4)) != 0 ] && [ "$was_size" -le @BYTES@ ] && [ "$was_size" -le "${record_room:=@ROOM@}" ]; then
      record_room=$((record_room - was_size)); (umask 077; mkdir -p -- "$record/before${2%/*}") &&
        cp -a -- "$1" "$record/before$2" && secure "$record/before$2" || return
    fi;;
  link*) (umask 077; mkdir -p -- "$record/before${2%/*}") && cp -a -- "$1" "$record/before$2" || return;;
  esac
  printf '\n%s\n' "$was" >>"$record/files" && secure "$record/files" "$record"
}
secure() { [ -n "${all_at_once:-}" ] || sync -- "$@"; }
wrote() {  # STATE: adds what will stand at a path to what this run wrote
  [ ! -d "$record" ] || { printf '\n%s\n' "$1" >>"$record/wrote" && sync "$record/wrote"; }
}
""".replace("@BYTES@", str(_MOST_FILE_BYTES)).replace("@ROOM@", str(_MOST_BYTES))
)
"""Shell functions that record a path before it is changed. Without a record they do nothing. Their variables (record,
was, was_mode, was_size, record_room) are global."""

APT_WORK = r"""
ended() {  # FOLDER: adds to the packages of that run those that differ, also by their mark, from before apt began
  [ -e "$1/apt-before" ] || return 0
  marked | LC_ALL=C comm -3 "$1/apt-before" - | sed 's/^\t//' | cut -f 1 | sort -u >>"$1/own-packages" &&
    sync "$1/own-packages" && rm -f "$1/apt-before"
}
begun() {
  own=/var/lib/rigwright/runs/${RIGWRIGHT_RUN:-none}/record
  [ -d "$own" ] || return 0
  ended "$own"; marked >"$own/apt-before.new" && sync "$own/apt-before.new" &&
    mv "$own/apt-before.new" "$own/apt-before"
}
"""
"""Shell functions around each work of apt, after LISTED: `begun`, and `ended "$own"`, which records what it changed."""

_USUAL = " ".join(
    sorted(
        {file.path.replace("NAME", "*") for file in HOST_FILES.values()}
        | {"/usr/share/keyrings/rigwright-*.asc", "/etc/rigwright/limits.json", "/etc/rigwright/mig.json"}
        | {"/usr/local/lib/rigwright/*.py"}
        | {"/etc/default/grub", "/etc/default/grub.d/*", "/boot/grub/custom.cfg", "/etc/modprobe.d/*"}
        | {"/etc/apt/sources.list", "/etc/apt/sources.list.d/*", "/etc/apt/preferences", "/etc/apt/preferences.d/*"}
    )
)

RECORD = (
    (
        KEEP
        + LISTED
        + APT_WORK
        + r"""
run=${RIGWRIGHT_RUN:-} runs=/var/lib/rigwright/runs
[ -n "$run" ] && [ ! -d "$runs/$run/record" ] || exit 0
fail() { echo "E: what was before this run cannot be recorded: $1" >&2; rm -rf "$runs/$run/record.new"; exit 1; }
mkdir -p -m 755 /var/lib/rigwright && mkdir -p -m 700 "$runs" && chmod 700 "$runs" || fail "$runs cannot be made"
umask 077; record=$runs/$run/record.new
rm -rf "$record" && mkdir -p "$record/before" && cd "$record" || fail "$record cannot be made"
for folder in "$runs"/*/record; do [ "$folder" = "$runs/*/record" ] || ended "$folder"; done
number=$(sed -n 's/^number \([0-9]\{1,9\}\)$/\1/p' "$runs"/*/record/about 2>/dev/null | sort -n | tail -n 1)
release=$(uname -r)
{ echo "format 1"; echo "number $((${number:-0} + 1))"; echo "time $(date -u +%FT%TZ)"
  echo "machine $(sha256sum </etc/machine-id | cut -c 1-64)"; echo "boot $(cat /proc/sys/kernel/random/boot_id)"
  echo "kernel $release"; echo "cmdline $(tr -d '\n' </proc/cmdline)"
  echo "loaded $(grep -o '[0-9]\{3,\}[.][0-9.]*[0-9]' /proc/driver/nvidia/version 2>/dev/null | head -n 1)"
  echo "module $(set -- "$release" nvidia version; @MODINFO@)"
} >about || fail "no room in $runs"
listed >packages && [ -s packages ] || fail 'dpkg-query does not list the packages, or there is no room'
automatic | LC_ALL=C sort >automatic
timeout 20 systemctl list-unit-files --plain --no-legend --no-pager 2>/dev/null | awk '{print "file " $1 " " $2}' >units
timeout 20 systemctl list-units --all --plain --no-legend --no-pager 2>/dev/null |
  awk '{print "unit " $1 " " $3}' >>units
: >gpus; cat @LOCKED@ >locks 2>/dev/null || :
if [ -e /proc/driver/nvidia/version ]; then
  { timeout -k 1 20 nvidia-smi -q -x >gpus.new 2>/dev/null &&
    grep -v '<supported_graphics_clock>' gpus.new >gpus
    rm -f gpus.new; echo >asked; } &
  n=0; while [ ! -e asked ] && [ $n -lt 220 ]; do n=$((n + 1)); sleep 0.1; done; rm -f asked
fi
: >files; : >wrote; : >own-packages; : >own-units; n=0 all_at_once=1
for path in @LISTS@; do kept "$path" "$path" || fail "no room in $runs"; done
for path in @USUAL@; do
  { [ -f "$path" ] || [ -L "$path" ]; } && [ $n -lt @MOST@ ] && case $path in *'
'*) ;; *) n=$((n + 1)); kept "$path" "$path" || fail "no room in $runs";; esac
done
sha256sum @TEXTS@ >digests && find . ! -type l -exec sync -- {} + && mv "$record" "$runs/$run/record" &&
  sync "$runs/$run" "$runs" || fail "no room in $runs"
"""
    )
    .replace("@USUAL@", _USUAL)
    .replace("@LOCKED@", LOCKED_FILE)
    .replace("@TEXTS@", TEXTS)
    .replace("@MOST@", str(_MOST_FILES))
    .replace("@LISTS@", " ".join(LISTS))
    .replace("@MODINFO@", MODINFO)
)
"""Records what is on the host, once in a run; the folder of the record appears when it is complete."""

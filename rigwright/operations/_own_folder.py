"""Shell functions that go to a folder without following the links of other users, who may own a folder on the way."""

from __future__ import annotations

ENTER = """
enter() {  # FOLDER [make]: goes to a folder. A link counts only in a folder that no other user can change
  cd / || return
  left=$1
  while [ -n "$left" ]; do
    part=${left%%/*}
    case $left in */*) left=${left#*/};; *) left=;; esac
    [ -n "$part" ] || continue
    here=$(pwd -P) about=$(stat -c %u:%a .) || return
    [ -z "$2" ] || [ -e "./$part" ] || mkdir -m 755 -- "./$part" || return
    cd -P -- "./$part" || return
    case $about in "$(id -u)":*[2367][0-7] | "$(id -u)":*[2367]) ;; "$(id -u)":*) continue;; esac
    inside "$here" "$part" || return
  done
}
inside() {  # FOLDER NAME: fails unless the current folder is NAME in FOLDER, and no link led to it
  [ "$(pwd -P)" = "${1%/}/$2" ] || { echo "${1%/}/$2 is a link, and another user may change ${1%/}/" >&2; return 1; }
}
"""
"""`enter` goes to a folder part by part: a process keeps its folder, also when somebody puts a link in its place."""

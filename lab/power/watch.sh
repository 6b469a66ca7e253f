#!/bin/sh
# Watches one running host, the firmware that boots it again: $1 its name, $2 the Python that boots it. Ends when it powers
# off or cannot boot. A shell, because every host has one: a Python that waits would take half of the host's memory.
while :; do
    "$2" -m lab.power.supervise "$1" "$$"
    status=$?
    echo "lab: $1 ended, status $status"
    case $status in 133 | 99) ;; *) exit "$status" ;; esac # 133: a reboot; 99: a panic or an initramfs that restarts (guest/init)
done

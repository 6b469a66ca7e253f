"""The guard's readings in the text format of Prometheus, for the textfile collector of node_exporter."""

FAMILIES = (  # name, type, help
    ("reading_time_seconds", "gauge", "When the guard read last, seconds since 1970."),
    ("ring_written", "gauge", "1 while the ring of the last hour is written, 0 when the disk is full."),
    ("steps_made", "gauge", "Steps made since a threshold was first reached, 0 when none is."),
    ("gpu_answering", "gauge", "1 when the GPU answers, 0 when it hangs or is lost."),
    ("gpu_temperature_celsius", "gauge", "The GPU's temperature."),
    ("gpu_memory_temperature_celsius", "gauge", "The temperature of the GPU's memory."),
    ("gpu_power_watts", "gauge", "The GPU's power draw."),
    ("gpu_power_limit_watts", "gauge", "The GPU's power limit."),
    ("gpu_fan_ratio", "gauge", "The GPU's fan speed, 0 to 1."),
    ("fan_rpm", "gauge", "A fan of the machine, turns in a minute."),
    ("machine_power_watts", "gauge", "What the machine draws, by its supplies."),
    ("energy_joules_total", "counter", "Energy by month, of the GPUs and of the machine."),
    (
        "events_total",
        "counter",
        "Memory errors since the counters began; OOM kills, machine checks and Xids since the guard started.",
    ),
)


def text(samples):
    """The text of samples: (name without its prefix, labels, value) in any order; a value of None has no line."""
    by_name = {}
    for name, labels, value in samples:
        if value is None:
            continue
        texts = {key: str(label).replace("\\", "\\\\").replace('"', '\\"') for key, label in labels.items()}
        inside = ",".join('%s="%s"' % item for item in texts.items())
        inside = "".join(char if char.isprintable() else " " for char in inside)
        number = repr(round(float(value), 3))
        number = number[:-2] if number.endswith(".0") else number
        by_name.setdefault(name, []).append("%s %s" % ("{%s}" % inside if inside else "", number))
    lines = []
    for name, kind, help_text in FAMILIES:
        whole = "rigwright_guard_" + name
        if name in by_name:
            lines += ["# HELP %s %s" % (whole, help_text), "# TYPE %s %s" % (whole, kind)]
            lines += [whole + rest for rest in by_name[name]]
    return "".join(line + "\n" for line in lines)

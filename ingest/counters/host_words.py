"""The canonical names of a host's counters, once: what each means, its unit and its kind."""

from __future__ import annotations

from tracekit.ingest.counters.vocabulary import Vocabulary, Word

_STALLED = {
    "cpu": "for a CPU",
    "io": "for storage",
    "memory": "for memory (to be reclaimed, or read back)",
}
_EXTENTS = {"some": "at least one task", "full": "every task that was not idle"}


def _pressure() -> list[Word]:
    """Kernel's Documentation/accounting/psi.rst."""
    words = []
    for resource, what in _STALLED.items():
        for extent, who in _EXTENTS.items():
            name = f"{resource}_pressure_{extent}"
            said = f"that {who} waited {what}"
            words.append(Word(f"{name}_time", "ns", "cumulative", f"Time {said}."))
            words.append(
                Word(name, "ratio", "window", f"Share {said}, over the interval that the row says.")
            )
    return words


_SENSORS = {
    "cpu": "a CPU", "dimm": "a memory module", "disk": "a disk", "fan": "a fan",
    "nvswitch": "an NVSwitch", "psu": "a power supply",
}  # fmt: skip


def _sensors() -> list[Word]:
    """What a board's controller measures; ``device`` of a row says which of them."""
    return [
        word
        for device, what in _SENSORS.items()
        for word in (
            Word(f"{device}_power", "W", "gauge", f"Power of {what}."),
            Word(f"{device}_temperature", "celsius", "gauge", f"Temperature of {what}."),
        )
    ]


HOST = Vocabulary(
    *_pressure(),
    *_sensors(),
    Word("board_gpu_temperature", "celsius", "gauge", "GPU's, by the board's own number of it."),
    Word("board_gpu_power", "W", "gauge", "Power of a GPU, by the board's own number of it."),
    Word("board_gpu_energy", "mJ", "cumulative", "Energy of a GPU, likewise."),
    Word("fan_rotation", "rpm", "gauge", "Turns of a fan a minute."),
    Word("fan_speed", "ratio", "gauge", "Speed of a fan, as a share of its highest."),
    Word("switch_temperature", "celsius", "gauge", "Temperature of a switch's own chip."),
    Word("psu_ok", "1 or 0", "gauge", "Whether a power supply says that it is well."),
    Word("fan_ok", "1 or 0", "gauge", "Whether the fans (of a power supply) are well."),
    Word("system_power", "W", "gauge", "Power of the whole machine."),
    Word("inlet_temperature", "celsius", "gauge", "Temperature of the air that comes in."),
    Word("outlet_temperature", "celsius", "gauge", "Temperature of the air that goes out."),
    Word("cpu_time", "ns", "cumulative", "CPU time of the control group, of all CPUs together."),
    Word("cpu_periods", "count", "cumulative", "Periods of the CPU quota in which it wanted CPU."),
    Word("cpu_throttled_periods", "count", "cumulative", "Those in which its quota ran out."),
    Word(
        "cpu_throttled_time", "ns", "cumulative",
        "Time for which its run queues were held back, of all CPUs together.",
    ),
    Word("memory_high_events", "count", "cumulative", "Times that it was slowed at memory.high."),
    Word("memory_max_events", "count", "cumulative", "Times that it reached memory.max."),
    Word("memory_oom_events", "count", "cumulative", "Times that it ran out of memory."),
    Word("memory_oom_kills", "count", "cumulative", "Processes killed for want of memory."),
    Word("cpu_user", "ratio", "window", "Share of all CPUs' time in programs."),
    Word("cpu_nice", "ratio", "window", "Share of it in programs of low priority."),
    Word("cpu_system", "ratio", "window", "Share of it in the kernel."),
    Word("cpu_iowait", "ratio", "window", "Share of it idle, while a task waited for storage."),
    Word("cpu_steal", "ratio", "window", "Share of it that the hypervisor gave to others."),
    Word("cpu_idle", "ratio", "window", "Share of it idle, and nothing waited for storage."),
    Word("cpu_busy", "ratio", "window", "Share of all CPUs' time that they worked."),
    Word("runnable_tasks", "tasks", "gauge", "Tasks that run or wait for a CPU."),
    Word("blocked_tasks", "tasks", "gauge", "Tasks that wait for storage."),
    Word("major_fault_rate", "1/s", "window", "Page faults a second that had to read storage."),
    Word("swapped_in_rate", "pages/s", "window", "Pages a second read back from swap."),
    Word("swapped_out_rate", "pages/s", "window", "Pages a second written to swap."),
    Word("memory_used", "bytes", "gauge", "Memory that is in use."),
    Word("memory_available", "bytes", "gauge", "Memory that can be had without swapping."),
)  # fmt: skip
"""The names, and whether a number only grows."""

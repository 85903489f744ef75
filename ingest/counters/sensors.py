"""What a machine's controller calls its sensors, in the words of ``host_sample``.

A name is read as a table's header with that unit would be (``PSU1 Power In`` in W is psu1's power).
GPUs that the controller watches are called by its own numbers, which need not be NVML's: they stay
parts of the board.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from tracekit.ingest.counters.device_headers import column_of
from tracekit.ingest.counters.device_samples import Column
from tracekit.ingest.counters.host_words import HOST
from tracekit.ingest.counters.vocabulary import Meaning

_PART = re.compile(r"(?i)(?<![a-z])(psu|ps|fan|cpu|dimm|nvme)[ _-]?(\d{1,4})")
_GPU = re.compile(r"(?i)(?<![a-z])gpu(?:[ _-]?(?:sxm|gb|oam|tray|module))?[ _-]?(\d{1,3})(?!\d)")
_OF_BOARD = {"C": "board_gpu_temperature", "W": "board_gpu_power", "J": "board_gpu_energy"}
_IN_GPU = re.compile(r"(?i)hbm|mem|dram|nvlink|vr\b|vreg|limit|thresh|margin")
"""Of a GPU's sensors those that are not the chip's or the whole board's."""


class Sensor(NamedTuple):
    """What a sensor measures."""

    device: str | None
    """Part of the machine; None: all of it."""
    meaning: Meaning


@cache
def sensor_of(name: str, unit: str) -> Sensor | None:
    """The sensor of a name and a unit (``C``, ``W``, ``J``, ``rpm``, ``%``); None for others."""
    gpu = _GPU.search(name)
    if gpu is not None:
        if unit not in _OF_BOARD or _IN_GPU.search(name):
            return None
        scale = 1000 if unit == "J" else 1
        return Sensor(gpu[0].replace(" ", "_"), HOST.meaning(_OF_BOARD[unit], scale))
    found = column_of(0, f"{_plain(name)} [{unit}]") if unit != "J" else None
    if not isinstance(found, Column) or found.kind != "host":
        return None
    return Sensor(found.device or None, found.meaning)


def _plain(name: str) -> str:
    """``PSU1 Power In`` and ``FAN_3`` as headers are written; a part alone is its usual number."""
    text = _PART.sub(lambda m: ("psu" if m[1].lower() == "ps" else m[1]) + m[2], name)
    return f"{text} speed" if re.fullmatch(r"(?i)fan\d+", text) else text

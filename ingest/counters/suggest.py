"""What job.toml could say of a table that nobody recognises, ready to be corrected."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from tracekit.ingest.counters import fields, gpu_table, net_table, times
from tracekit.ingest.counters.gpu_words import GPU
from tracekit.ingest.counters.net_words import NET
from tracekit.ingest.counters.table import bare_name, cells_of
from tracekit.ingest.counters.table_heads import HEAD_LINES, heads

MAX_LISTED = 40
"""Columns that are listed without a place."""
LEAST_LIKENESS = 0.75
"""Of a header and a counter's name, as difflib measures it, from which it is offered."""

_UNITS = frozenset(
    {"pct", "percent", "celsius", "c", "watt", "watts", "w", "mb", "mib", "ghz", "mhz"}
)
"""Last words of headers that say how much, not what."""
_LOOKS = {
    "gpu": re.compile(r"(?:gpu|card|device|dev|accelerator)(?: ?(?:id|idx|index|no|num|number))?"),
    "host": re.compile(r"(?:host|node|machine|server|switch)(?: ?(?:id|name))?"),
    "port": re.compile(r"(?:port|iface|interface|nic|if|link|adapter|hca)(?: ?(?:id|no|name))?"),
}
_CELLS = {
    "gpu": re.compile(r"(?:gpu|cuda:?|card)?\d{1,3}", re.I),
    "host": re.compile(r"[A-Za-z][\w.-]{0,100}"),
    "port": re.compile(r"[\w./:-]{1,60}"),
}

_HINTS = {
    False: {
        "watt": "power", "power": "power", "temp": "gpu_temperature", "util": "gpu_utilisation",
        "clock": "sm_clock", "mem": "memory_used",
    },
    True: {
        "xoff": "rx_pfc_packets", "pause": "rx_pfc_packets", "drop": "rx_dropped_packets",
        "discard": "rx_dropped_packets", "err": "rx_errors",
    },
}  # fmt: skip
"""Beginnings of words, and the counter that is most often meant."""
_OF_UNIT = {"w": "power", "watt": "power", "watts": "power", "°c": "gpu_temperature"}
"""Of a header in another language, its unit in brackets, and the counter that is then meant."""


class Guess(NamedTuple):
    """A column, and what it may be."""

    key: str
    header: str


class Suggestion(NamedTuple):
    """Of one table."""

    sure: tuple[Guess, ...]
    """Parts and counters whose headers or cells say so."""
    perhaps: tuple[Guess, ...]
    """Counters whose names are near."""
    unplaced: tuple[str, ...]
    needs_zone: bool
    """Whether its times lack their zone."""
    host: str | None = None
    """The machine that its headers name."""

    def toml(self, path: str) -> str:
        """The block ``[[source]]`` of job.toml; what is a guess or open stands in comments."""
        said = ", ".join(f"{g.key} = {_quoted(g.header)}" for g in self.sure)
        text = ["[[source]]", f"path = {_quoted(path)}"]
        if self.host is not None:
            text.append(f"host = {_quoted(self.host)}")
        elif not any(g.key == "host" for g in self.sure):
            text.append('# host = ""  # the machine, where no column names it')
        if self.needs_zone:
            text.append('# timezone = "UTC"  # of its times, which state none')
        text.append(f"columns = {{ {said} }}")
        text += [f"# perhaps {g.key} = {_quoted(g.header)}" for g in self.perhaps]
        if self.unplaced:
            names = ", ".join(_quoted(n) for n in self.unplaced[:MAX_LISTED])
            more = len(self.unplaced) - MAX_LISTED
            text.append(f"# no place for {names}{f' and {more} more' if more > 0 else ''}")
        return "\n".join(text) + "\n"


def suggest(head: bytes, name: str = "") -> Suggestion | None:
    """What a table's columns may be, from its first lines; None where none may be a counter.

    Counters are of GPUs or of ports, whichever more headers are like: one file holds one kind.
    Where headers name devices by their numbers, each column is a counter of one; which, the header
    or the file's ``name`` says.
    """
    lines = head.decode("utf-8", "replace").splitlines()
    top = next(heads(lines[:HEAD_LINES]), None)
    if top is None:
        return None
    header = [name.strip() for name in top.shown]
    rows = [
        cells
        for line in lines[top.lines : top.lines + 20]
        if len(cells := cells_of(line, top.delimiter)) == len(header)
    ]
    if not rows or any(re.fullmatch(r"[-+\d.]+", h) for h in header):
        return None
    options = [_of_subject(header, rows, is_network=n) for n in (False, True)]
    best = max(options, key=_worth)
    devices = _of_devices(header, rows, name)
    if devices is not None and _worth(best)[0] == 0:
        return devices
    return best if _worth(best) > (0, 0) else None


_NUMBERED = re.compile(r"(gpu|card|cuda|index|ib|eth|mlx5|nic|hca)\W{0,4}_?(\d{1,3})(?!\d)", re.I)
_METRICS = (
    ("power", "power_w"), ("watt", "power_w"), ("leistung", "power_w"),
    ("temp", "temp_c"), ("util", "util_pct"),
    ("busy", "util_pct"), ("sm_clock", "sm_clock_mhz"), ("clock", "sm_clock_mhz"),
    ("memory_used", "memory_used_mib"), ("mem", "memory_used_mib"), ("fb", "memory_used_mib"),
)  # fmt: skip
"""Words of a header or of a file's name, and the counter of a GPU that is most often meant."""
_FLOWS = (
    ("xmit", "tx_bytes_s"), ("tx", "tx_bytes_s"), ("rcv", "rx_bytes_s"), ("recv", "rx_bytes_s"),
    ("rx", "rx_bytes_s"),
)  # fmt: skip
_OF_HOST = re.compile(r"(?:hostname|host|node|instance)\W{1,4}([A-Za-z][\w.-]{0,60})", re.I)


def _of_devices(
    header: Sequence[str], rows: Sequence[Sequence[str]], name: str
) -> Suggestion | None:
    """A column a device, by numbers in headers; None where no header has one and a counter."""
    sure: dict[str, str] = {}
    perhaps: list[Guess] = []
    unplaced: list[str] = []
    hosts: set[str] = set()
    needs_zone = False
    for at, text in enumerate(header):
        cells = [row[at].strip() for row in rows if row[at].strip()]
        moments = [times.parse(c) or times.local_ns(c) for c in cells]
        if "time" not in sure and cells and all(m is not None for m in moments):
            sure["time"] = text
            needs_zone = any(m is None or isinstance(m, times.Local) for m in moments)
            continue
        device = _NUMBERED.search(text)
        if device is None:
            unplaced.append(text)
            continue
        hosts |= {m[1] for m in _OF_HOST.finditer(text)}
        is_port = device[1].lower() in ("ib", "eth", "mlx5", "nic", "hca")
        kind = f"{device[1].lower()}{'_' if device[1].lower() == 'mlx5' else ''}" * is_port or "gpu"
        words = _FLOWS if is_port else _METRICS
        said = (m for where in (text, name) for w, m in words if w in where.lower())
        metric = next(said, None)
        key = f"{kind}{int(device[2])}_{metric or words[0][1]}"
        if metric is not None and key not in sure:
            sure[key] = text
        else:
            perhaps.append(Guess(key, text))
    if "time" not in sure or (len(perhaps) == 0 and len(sure) < 2):
        return None
    guesses = tuple(Guess(k, h) for k, h in sure.items())
    host = hosts.pop() if len(hosts) == 1 else None
    return Suggestion(guesses, tuple(perhaps), tuple(unplaced), needs_zone, host)


def _worth(suggestion: Suggestion) -> tuple[int, int]:
    """How many counters are sure, and how many may be some."""
    return sum(g.key in GPU or g.key in NET for g in suggestion.sure), len(suggestion.perhaps)


def _of_subject(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, is_network: bool
) -> Suggestion:
    words = NET if is_network else GPU
    roles = net_table.TABLE.roles if is_network else gpu_table.TABLE.roles
    sure: dict[str, str] = {}
    perhaps: list[Guess] = []
    unplaced: list[str] = []
    needs_zone = False
    for at, name in enumerate(header):
        cells = [row[at].strip() for row in rows if row[at].strip()]
        moments = [times.parse(c) or times.local_ns(c) for c in cells]
        key = next((r for r, names in roles.items() if bare_name(name) in names), None)
        if key is None and cells and all(m is not None for m in moments):
            key = "time"
        if key is None:
            plain = re.sub(r"[^a-z0-9]+", " ", bare_name(name)).strip()
            key = next(
                (
                    role
                    for role, looks in _LOOKS.items()
                    if role in roles and looks.fullmatch(plain)
                    and cells and all(_CELLS[role].fullmatch(c) for c in cells)
                ),
                None,
            )  # fmt: skip
        joined = re.sub(r"[^A-Za-z0-9\[\]/%]+", "_", name.strip()).replace("_[", " [")
        key = (
            key or _counter(name, is_network=is_network) or _counter(joined, is_network=is_network)
        )
        if key is not None and key not in sure:
            sure[key] = name.strip()
            needs_zone |= key == "time" and any(
                m is None or isinstance(m, times.Local) for m in map(times.parse, cells)
            )
            continue
        parts = [p for p in re.split(r"[^a-z0-9]+", bare_name(name)[:200]) if p]
        plain = "_".join(parts[:-1] if parts[1:] and parts[-1] in _UNITS else parts)
        near = difflib.get_close_matches(plain[:60], list(words), n=1, cutoff=LEAST_LIKENESS)
        hints = _HINTS[is_network].items()
        hint = next((c for part in parts for h, c in hints if part.startswith(h)), None)
        unit = re.search(r"[\[(]([^\[\]()]{1,10})[\])]\s*$", name)
        if hint is None and unit is not None and not is_network:
            hint = _OF_UNIT.get(unit[1].strip().lower())
        guess = near[0] if near else hint
        if guess is not None and guess not in sure and key is None:
            perhaps.append(Guess(guess, name.strip()))
        else:
            unplaced.append(name.strip())
    guesses = tuple(Guess(k, h) for k, h in sure.items())
    return Suggestion(guesses, tuple(perhaps), tuple(unplaced), needs_zone)


def _counter(name: str, *, is_network: bool) -> str | None:
    """The counter that a header is by itself."""
    if is_network:
        known = net_table.TABLE.by_header(name)
        return known.meaning.counter if known is not None else None
    meaning = fields.of_column(name)
    return meaning.counter if meaning is not None and meaning.counter in GPU else None


def _quoted(text: str) -> str:
    """A basic string of TOML, which is one of JSON; at most 200 characters."""
    return json.dumps(text[:200], ensure_ascii=True)

"""A simulated fleet at the level of its tables: 30 nights of 40 runs, three faults, three decoys.

What a run's diagnosis would say is written down here and not worked out: what is tested is what the
nights make of it. Days count from 1.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from tracekit.findings import Severity, severity_of
from tracekit.fleet.lake import Card, Entry, Lake

Row = dict[str, Any]

FIRST = date(2026, 6, 1)
HOSTS = tuple(f"h{i:02d}" for i in range(64))
SLOW_HOST, LINK_HOST, BUSY_HOST = "h13", "h27", "h40"
LINK = f"leaf3:{LINK_HOST}"
SLOW_DAY, BATCH_DAY, MISSING_DAY, LINK_DAY, UPGRADE_DAY = 12, 15, 18, 20, 25
UPGRADE_RATIO = 1.04
BATCH_FAMILY = 3
FAMILIES = 16
RUNS_A_NIGHT = 40
HOSTS_A_RUN = 4
GPUS_A_HOST = 2
HOSTS_A_RACK = 8
RACK, RACK_DAY = "r6", 10
"""Of the fault ``rack``: every host of it now and then, none of them often."""
LOGGED_FAMILY = 5
LOGGED = {"productive": 0.9, "periodic": 0.03, "repeated": 0.02, "down": 0.05}
GPU_WATTS, GPU_HOUR_EUR = 500.0, 2.0


def day_of(day: int) -> str:
    """The date of a day, from 1."""
    return (FIRST + timedelta(days=day - 1)).isoformat()


@dataclass
class Fleet:
    """Runs by date; every fault can be left out."""

    seed: int = 1
    days: int = 30
    faults: frozenset[str] = frozenset({"host", "link", "upgrade"})
    decoys: frozenset[str] = frozenset({"busy", "batch", "missing"})
    bad_hosts: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Further hosts that break: from which day on, and in which part of their runs."""
    runs: dict[str, list[tuple[Card, dict[str, list[Row]]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)  # noqa: S311  # a simulation
        for day in range(1, self.days + 1):
            made = [self._run(draw, day, index) for index in range(RUNS_A_NIGHT)]
            is_missing = "missing" in self.decoys and day == MISSING_DAY
            self.runs[day_of(day)] = made[::2] if is_missing else made

    def _hosts(self, draw: random.Random) -> list[str]:
        hosts = draw.sample(HOSTS, HOSTS_A_RUN)
        if "busy" in self.decoys and BUSY_HOST not in hosts and draw.random() < 0.3:
            hosts[0] = BUSY_HOST
        return sorted(hosts)

    def _run(self, draw: random.Random, day: int, index: int) -> tuple[Card, dict[str, list[Row]]]:
        family = index % FAMILIES
        is_new_batch = "batch" in self.decoys and family == BATCH_FAMILY and day >= BATCH_DAY
        is_upgraded = "upgrade" in self.faults and day >= UPGRADE_DAY
        signature = f"sig{family:02d}{'b' if is_new_batch else 'a'}"
        hosts = self._hosts(draw)
        step_s = (1 + family / 4) * draw.lognormvariate(0, 0.005)
        if draw.random() < 0.02:
            step_s *= 1.03  # a night on which something was going on
        step_s *= 1.3 if is_new_batch else 1
        step_s *= UPGRADE_RATIO if is_upgraded else 1
        on_hosts: dict[str, str] = {}
        on_links: dict[str, str] = {}
        cost_s: float | None = 0.0
        for host in hosts:
            if draw.random() < 0.004:
                on_hosts[host] = "slow-host"
                cost_s = 0.02 * step_s
        if "rack" in self.faults and day >= RACK_DAY:
            for host in hosts:
                if _rack(host) == RACK and draw.random() < 0.12:
                    on_hosts[host] = "power-brake"
                    cost_s = 0.02 * step_s
        for host in hosts:
            since, ratio = self.bad_hosts.get(host, (self.days + 1, 0.0))
            if day >= since and draw.random() < ratio:
                on_hosts[host] = "slow-host"
                cost_s = 0.02 * step_s
        if "host" in self.faults and day >= SLOW_DAY and SLOW_HOST in hosts:
            on_hosts[SLOW_HOST] = "slow-host"
            cost_s = 0.1 * step_s
            step_s += cost_s * draw.uniform(0.97, 1.03)
        drops = "link" in self.faults and day >= LINK_DAY and LINK_HOST in hosts
        if drops and draw.random() < 0.8:
            on_links[LINK] = "packet-loss"
            on_hosts[LINK_HOST] = "packet-loss"
            cost_s = None
            step_s *= draw.uniform(1.05, 1.4)
        name = f"job{index:02d}-{day:02d}"
        day_text = day_of(day)
        card = Card(
            name=name,
            date=day_text,
            added_utc=f"{day_text}T23:00:00+00:00",
            generation=1,
            key=f"{self.seed}-{name}",
            attempts_count=1,
            start_utc=f"{day_text}T{index % 24:02d}:00:00+00:00",
            end_utc=None,
            job_name=f"train-{family:02d}",
            job_id=None,
            signature=signature,
            is_described=True,
            model="layers 8",
            layout="dp 8",
            world_size=8,
            ranks_count=8,
            hosts=tuple(hosts),
            gpu_model="H200",
            framework="megatron 2.5" if is_upgraded else "megatron 2.4",
            torch_version="2.13.0",
            cuda_version="13.0",
            nccl_version="2.30.1",
            driver_version="610.10",
            sources_count=8,
        )
        return card, _tables(card, step_s, cost_s, on_hosts, on_links)

    def tables(self, name: str, since: str | None = None, until: str | None = None) -> list[Row]:
        """Rows of a table between two dates, as the store gives them."""
        return [
            row
            for day, runs in self.runs.items()
            if (since is None or day >= since) and (until is None or day <= until)
            for _, tables in runs
            for row in tables.get(name, ())
        ]

    rows = tables

    def ledger(self) -> dict[str, Row]:
        """Every run with its key, as the store's ledger has it."""
        return {card.name: {"key": card.key} for runs in self.runs.values() for card, _ in runs}


def _tables(
    card: Card,
    step_s: float,
    cost_s: float | None,
    on_hosts: dict[str, str],
    on_links: dict[str, str],
) -> dict[str, list[Row]]:
    # As a diagnosis grades: by the share of the step; a loss that is not priced is a minor finding.
    severity = severity_of(cost_s / step_s) if cost_s is not None else Severity.MINOR

    def place(rule: str | None) -> Row:
        return {
            "rules": [rule] if rule else [],
            "severity": str(severity) if rule else None,
            "gpu_hours_per_day": 10.0 if rule else None,
        }

    rule = next(iter([*on_links.values(), *on_hosts.values()]), None)
    job = {
        "family": card.signature,
        **{n: getattr(card, n) for n in ("job_name", "start_utc", "signature", "model", "layout")},
        **{n: getattr(card, n) for n in ("world_size", "ranks_count", "gpu_model", "framework")},
        **{n: getattr(card, n) for n in ("torch_version", "cuda_version", "nccl_version")},
        "driver_version": card.driver_version,
        "hosts": list(card.hosts),
        "steps_count": 10,
        "step_mean_s": step_s,
        "place_cost_s": cost_s,
        "verdict": "culprit" if rule else "inherent",
        "verdict_rule": rule,
        "sentence": f"{rule}, as simulated." if rule else "Nothing to fix, as simulated.",
        "inputs_count": 8,
        "inputs_bad_count": 0,
    }
    ports = [f"leaf{int(h[1:]) // HOSTS_A_RACK}:{h}" for h in card.hosts]
    tables = {
        "job": [job],
        "step": [{"rank": None, "steps_count": 10, "mean_s": step_s}],
        "host": [
            {"host": h, "rack": _rack(h), "ranks_count": 2, **place(on_hosts.get(h))}
            for h in card.hosts
        ],
        "gpu": [
            {"gpu": f"GPU-{h}-{i}", "host": h, **place(None)}
            for h in card.hosts
            for i in range(GPUS_A_HOST)
        ],
        "link": [{"link": p, **place(on_links.get(p))} for p in ports],
        "budget": [_part(180.0), _part(12.0, rule)] if rule else [_part(192.0)],
    }
    index = int(card.name[3:5])
    if index % FAMILIES == LOGGED_FAMILY:  # a log of ten hours of eight GPUs
        tables["goodput"] = [
            {"part": part, "spent_s": 36000 * ratio, "gpu_hours": 80 * ratio}
            for part, ratio in LOGGED.items()
        ]
    tables["finding"] = [
        {
            "finding": f"{found}/{kind}:{place}",
            "rule": found,
            "severity": str(severity),
            "is_explained": False,
            "hosts": [host],
            "links": [place] if kind == "link" else [],
            "gpu_hours_per_day": 10.0,
            "summary": f"{place}: {found}, as simulated.",
        }
        for kind, host, place, found in [
            *(("host", h, h, r) for h, r in on_hosts.items()),
            *(("link", p.partition(":")[2], p, r) for p, r in on_links.items()),
        ]
    ]
    own = {"date": card.date, "run": card.name}
    return {name: [{**own, **row} for row in rows] for name, rows in tables.items()}


def _rack(host: str) -> str:
    return f"r{int(host[1:]) // HOSTS_A_RACK}"


def _part(hours: float, rule: str | None = None) -> Row:
    return {
        "part": "finding" if rule else "floor",
        "rule": rule,
        "gpu_hours_per_day": hours,
        "energy_joules_per_day": hours * 3600 * GPU_WATTS,
        "amount_per_day": hours * GPU_HOUR_EUR,
        "currency": "EUR",
    }


class FleetLake(Lake):
    """A lake whose runs are a simulated fleet's, of which some days have come in."""

    def __init__(self, root: Path, fleet: Fleet, days: int = 0) -> None:
        self.root = root
        self.simulated = fleet
        self.days = days
        self.asked: list[str] = []
        self.opened: list[str] = []
        self.prefix = ""

    def _here(self) -> Iterator[tuple[Card, dict[str, list[Row]]]]:
        for day in range(1, self.days + 1):
            yield from self.simulated.runs[day_of(day)]

    def _stamps(self) -> dict[str, str | None]:
        return {card.name: self.prefix + card.key for card, _ in self._here()}

    def entry(self, name: str) -> Entry:
        self.opened.append(name)
        card = next(card for card, _ in self._here() if card.name == name)
        return Entry(name, self.root / name, card, stamp=self.prefix + card.key)

    def diagnosed(self, entry: Entry) -> dict[str, list[Row]]:
        """What a diagnosis would say; remembers that it was asked."""
        self.asked.append(entry.name)
        return next(tables for card, tables in self._here() if card.name == entry.name)


def dies(entry: Entry, **_: object) -> dict[str, list[Row]]:
    """A diagnosis that the kernel kills for one run: that which DIES names."""
    if entry.name == os.environ["DIES"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}

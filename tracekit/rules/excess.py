"""Where the time of a late rank goes that its peers do not spend: in what, how often, and how.

A rule that has found a rank late, by its own measure, asks here what the rank did meanwhile. Four
answers lead to four remedies: it did more (more calls, or larger inputs), it did the same more
slowly (in all steps or in some), something stretched its calls at random, or nothing was recorded
while it stood. Nothing here accuses: where no answer covers half of the delay there is none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from tracekit.findings import Evidence, Owner
from tracekit.range_kind import RangeKind
from tracekit.rules.base import Facts, Row
from tracekit.rules.range_names import BESIDE_TRAINING, class_of
from tracekit.rules.recurrence import how_often
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed, per_step, plural, seconds, short

QUERY = "excess"
FRAMES = "python_time"
Peers = Literal["stage", "job"]
Beyond = Literal["excess_ns", "over_usual_ns"]
"""Than the peers, or than in the rank's own median step."""
Nature = Literal["more work", "slower work", "stretched", "pause"]


class ExcessThresholds(Thresholds):
    """When something is said of where a delay lies."""

    min_place_ratio: float = threshold(
        0.5,
        "share of a delay that must lie in one place, or be of one nature, to be said of it: the"
        " rest could not be larger",
    )
    min_inside_ratio: float = threshold(
        0.8, "of what lies in a range, in a range inside it for that to be named instead"
    )
    min_heavy_ratio: float = threshold(
        0.5, "of the largest part, in one whose steps are told: small ones are in all steps"
    )
    min_excess_mads: float = threshold(
        3.5, "scaled median absolute deviations of the peers beyond which a part counts (3.2)"
    )
    min_stretched_count: int = threshold(
        5, "names stretched in turn: one or two are slow calls, a scheduler strikes anywhere"
    )
    min_judged_count: int = threshold(3, "steps whose median tells what comes and goes")


class Advice(Struct, frozen=True):
    """Who can mend what a range was for, and how."""

    owner: Owner
    confirm: str
    remedy: str


ADVICE: Mapping[RangeKind, Advice] = {
    "input": Advice(
        "data",
        "train 50 steps on one batch kept in memory: is the delay gone?",
        "the input: more workers and prefetching, what is read every epoch cached or pre-decoded",
    ),
    "checkpoint": Advice(
        "framework",
        "train some steps without saving: is the delay gone?",
        "save asynchronously, and from every rank its own part",
    ),
    "evaluation": Advice(
        "model",
        "train some steps without evaluation: is the delay gone?",
        "evaluate on all ranks, or beside the training loop",
    ),
    "logging": Advice(
        "model",
        "train some steps without logging: is the delay gone?",
        "log from a thread of its own and less often; no .item() for it in the step",
    ),
    "collection": Advice(
        "framework",
        "gc.disable() for 50 steps: is the delay gone?",
        "gc.freeze() after warm-up, and collect on all ranks in the same step",
    ),
    "compilation": Advice(
        "framework",
        "TORCH_LOGS=recompiles on this rank and a peer",
        "give all ranks the same shapes, or mark what changes as dynamic",
    ),
}


class Excess(Struct, frozen=True):
    """What a rank spends beyond its peers, as far as it lies in one place."""

    rank: int
    nature: Nature | None
    """None where no single one covers half of it."""
    path: str
    """The ranges that it lies in, outermost first, with ``/``; empty where no range holds it."""
    reason: RangeKind | None
    """What that range is for, by its name."""
    rows: tuple[Row, ...]
    """Parts that exceed the peers', the largest first."""
    total_ns: float
    """Beyond the peers, of a mean step."""
    steps: tuple[int, ...]
    """Steps in which most of it lies."""
    judged_count: int
    affected_ns: float
    """Time in these parts in one of those steps, mean."""
    peer_ns: float
    """The peers' in the same."""
    delay_ns: float
    """What it was asked for."""
    limits: ExcessThresholds

    @property
    def is_beside_training(self) -> bool:
        """Whether its range is no part of the computation: then the rank need not be slow."""
        return self.reason in BESIDE_TRAINING

    @property
    def is_more_training(self) -> bool:
        """Whether it is more work of the model, and no more calls that ask for memory and wait."""
        work = [row for row in self.rows if _is_training(row)]
        least = self.limits.min_place_ratio * self.total_ns
        return self.nature == "more work" and sum(map(_more_work_ns, work)) >= least

    @property
    def may_be_larger_inputs(self) -> bool:
        """Whether as many calls take longer in some steps, and nobody recorded on how much."""
        is_known = any(row["input_ratio"] is not None for row in self.rows)
        return self.nature == "slower work" and len(self.steps) < self.judged_count and not is_known

    @property
    def advice(self) -> Advice | None:
        """What helps against time spent in such a range."""
        return None if self.reason is None else ADVICE.get(self.reason)

    @property
    def often(self) -> str:
        """In which steps, how many that is, and how regular."""
        return how_often(self.steps, self.judged_count)

    @property
    def sentence(self) -> str:
        """Where it lies and how much it is, to follow a colon."""
        place = f"in `{short(self.path)}`" if self.path else ""
        if self.is_beside_training:
            place += f" ({self.reason})"
        what = _parts(self.rows) if self.nature is None else _WHAT[self.nature](self.rows)
        peers = f"{seconds(self.peer_ns / 1e9)}" if self.peer_ns > 0 else "none"
        return (
            f"{', '.join(filter(None, (place, what)))}: {seconds(self.affected_ns / 1e9)} "
            f"{self.often}, {peers} on its peers"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        """The parts behind it, with their places."""
        where = f" in `{short(self.path)}`" if self.path else ""
        return (
            Evidence.seconds(
                f"time of rank {self.rank} beyond its peers'{where}, mean step",
                self.total_ns,
                self.limits.min_place_ratio * self.delay_ns,
                QUERY,
                facts.places(self.rows),
            ),
            *(
                Evidence.seconds(
                    f"{label(row)}: beyond its peers', mean step",
                    row["excess_ns"],
                    self.limits.min_excess_mads * float(row["spread_ns"]),
                    QUERY,
                    facts.places([row]),
                )
                for row in self.rows[:3]
            ),
        )


def where_it_lies(
    facts: Facts,
    rank: int,
    delay_ns: float,
    peers: Peers = "stage",
    kinds: Collection[str] | None = None,
) -> Excess | None:
    """Where a rank spends what it delays the others by; None where most of that is nowhere found.

    ``peers``: beside the ranks of its stage, or beside those of all stages. On the device if half
    of the delay is there, else on the host. Waiting is never an excess. ``kinds``: of rows, where
    others are no excess either, as what another stage computes more by the layout.
    """
    limits = facts.limits(ExcessThresholds)
    rows = [
        row
        for row in facts.of(QUERY)
        if row["rank"] == rank
        and row["peers"] == peers
        and row["kind"] != "wait"
        and (kinds is None or row["kind"] in kinds)
        and row["excess_ns"] is not None
        and float(row["excess_ns"]) > limits.min_excess_mads * float(row["spread_ns"])
    ]
    least = limits.min_place_ratio * delay_ns
    for timeline in ("device", "host"):
        here = [row for row in rows if row["timeline"] == timeline]
        if least > 0 and _total(here) >= least:
            return _made(facts, rank, here, delay_ns, limits)
    return None


def longer_calls(facts: Facts, rank: int, peers: Peers) -> float:
    """What calls of a rank take longer than its peers' in a mean step, ns, where as many of them
    were made on inputs whose size was recorded: without what more calls or larger inputs take. On
    the device where it has one; however far the peers lie apart."""
    timeline = "device" if facts.has_gpu else "host"
    return sum(
        float(row["excess_ns"]) - _more_work_ns(row)
        for row in facts.of(QUERY)
        if row["rank"] == rank
        and (row["peers"], row["timeline"]) == (peers, timeline)
        and row["kind"] in _CALLS
        and row["input_ratio"] is not None
        and float(row["excess_ns"] or 0.0) > 0
    )


def python_function(facts: Facts, rank: int, lasts_ns: float, beyond: Beyond) -> Row | None:
    """The innermost Python function that a rank is in for most of what lasts so long in a mean
    step, as its peers are not or itself is not in other steps; None where no frames are stored."""
    least = facts.limits(ExcessThresholds).min_inside_ratio * lasts_ns
    rows = [
        r for r in facts.of(FRAMES) if r["rank"] == rank and float(r[beyond] or 0.0) >= least > 0
    ]
    return min(rows, key=lambda row: (float(row["own_ns"]), str(row["name"])), default=None)


_FRAME = re.compile(r"(.+)\((\d+)\): (.+)")


def function_words(row: Row) -> str:
    """A Python function, with its file and line as the profiler writes them."""
    name = str(row["name"])
    parts = _FRAME.fullmatch(name)
    if parts is None:
        return f"`{short(name)}`"
    path, line, function = parts.groups()
    return f"`{short(function)}` ({short('/'.join(path.split('/')[-2:]))}, line {line})"


def passing_pauses(facts: Facts) -> dict[int, list[Row]]:
    """By rank, stretches of its loop with nothing recorded that come and go: neither its peers have
    them in those steps nor itself in the others. Not those in a range beside the training."""
    least = facts.limits(ExcessThresholds).min_place_ratio
    return {
        rank: passing
        for rank, rows in _pauses_beyond(facts, ["stage"]).items()
        if (passing := [r for r in rows if r["over_usual_ns"] >= least * r["excess_ns"]])
    }


def lone_pauses(facts: Facts) -> dict[int, list[Row]]:
    """By rank, those that its peers have not or hardly, in whichever steps: those of its stage, or
    of all stages where it has none in its own."""
    least = facts.limits(ExcessThresholds).min_place_ratio
    return {
        rank: alone
        for rank, rows in _pauses_beyond(facts, ["stage", "job"]).items()
        if (
            alone := [
                r
                for r in rows
                if r["affected_ns"] - r["affected_peer_ns"] >= least * r["affected_ns"]
            ]
        )
    }


def _pauses_beyond(facts: Facts, asked: Sequence[Peers]) -> dict[int, list[Row]]:
    """By rank, pauses in the training beyond those of the first of ``asked`` that it has."""
    limits = facts.limits(ExcessThresholds)
    compared: dict[int, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in facts.of(QUERY):
        if row["excess_ns"] is not None:
            compared[int(row["rank"])][row["peers"]].append(row)
    return {
        rank: [
            row
            for row in by_peers[peers]
            if row["kind"] == "pause"
            and row["excess_ns"] > limits.min_excess_mads * row["spread_ns"]
            and is_in_training(facts, row)
        ]
        for rank, by_peers in compared.items()
        for peers in [name for name in asked if name in by_peers][:1]
    }


def is_in_training(facts: Facts, row: Row) -> bool:
    """Whether a part lies in no range that is beside the training, as a save or an evaluation."""
    return class_of(str(row["path"]).split("/"), _own_names(facts)) not in BESIDE_TRAINING


def _own_names(facts: Facts) -> list[tuple[str, str]]:
    """What the job description says of ranges."""
    entries = facts.description.range if facts.description else ()
    return [(entry.name, entry.kind) for entry in entries if entry.kind]


def _made(
    facts: Facts, rank: int, rows: Sequence[Row], delay_ns: float, limits: ExcessThresholds
) -> Excess:
    path = _narrowest(rows, limits) or _range_of_more(facts, rows, delay_ns, limits)
    inside = [row for row in rows if _is_inside(str(row["path"]), path)]
    inside.sort(key=lambda r: -float(r["excess_ns"]))
    top = float(inside[0]["excess_ns"])
    heavy = [row for row in inside if float(row["excess_ns"]) >= limits.min_heavy_ratio * top]
    steps = tuple(sorted({int(step) for row in heavy for step in row["steps"]}))

    # Parts that are in other steps as well would count those in the ones that are told.
    within = [row for row in inside if set(steps).issuperset(row["steps"])]

    def in_them(column: str) -> float:
        return sum(float(r[column]) * int(r["steps_count"]) for r in within) / len(steps)

    return Excess(
        rank=rank,
        nature=_nature(inside, limits),
        path=path,
        reason=class_of(path.split("/"), _own_names(facts)) if path else None,
        rows=tuple(inside),
        total_ns=_total(inside),
        steps=steps,
        judged_count=int(inside[0]["judged_steps_count"]),
        affected_ns=in_them("affected_ns"),
        peer_ns=in_them("affected_peer_ns"),
        delay_ns=delay_ns,
        limits=limits,
    )


def _range_of_more(
    facts: Facts, rows: Sequence[Row], delay_ns: float, limits: ExcessThresholds
) -> str:
    """The range beside the training that holds calls which peers do not make, if most of a delay is
    there: what else takes longer must not hide it."""
    more = [
        row
        for row in rows
        if row["kind"] in _CALLS
        and _more_work_ns(row) >= limits.min_place_ratio * float(row["excess_ns"])
    ]
    if _total(more) < limits.min_place_ratio * delay_ns:
        return ""
    path = _narrowest(more, limits)
    return path if class_of(path.split("/"), _own_names(facts)) in BESIDE_TRAINING else ""


def _narrowest(rows: Sequence[Row], limits: ExcessThresholds) -> str:
    """The innermost range that holds most of what the ranges around it hold."""
    path, total = "", _total(rows)
    while True:
        inside: dict[str, float] = {}
        for row in rows:
            of_row = str(row["path"])
            if of_row != path and _is_inside(of_row, path):
                start = len(path) + 1 if path else 0
                child = of_row[:start] + of_row[start:].split("/")[0]
                inside[child] = inside.get(child, 0.0) + float(row["excess_ns"])
        best = max(sorted(inside), key=lambda child: inside[child], default=None)
        if best is None or inside[best] < limits.min_inside_ratio * total:
            return path
        path, total = best, inside[best]


def _is_inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}/")


def _total(rows: Iterable[Row]) -> float:
    return sum(float(row["excess_ns"]) for row in rows)


_CALLS = ("operator", "call", "kernel", "copy")
"""Kinds of parts that are calls of something."""


def _nature(rows: Sequence[Row], limits: ExcessThresholds) -> Nature | None:
    """What kind of excess covers half of all."""
    total = _total(rows)
    least = limits.min_place_ratio * total
    top = float(rows[0]["excess_ns"])
    is_spread = len(rows) >= limits.min_stretched_count and top < least
    if is_spread and sum(_at_random_ns(row, limits) for row in rows) >= least:
        return "slower work" if _is_even(rows, limits) else "stretched"
    quiet = _total(row for row in rows if row["kind"] in ("pause", "range"))
    if quiet >= least:
        return "pause"
    calls = [row for row in rows if row["kind"] in _CALLS]
    more = sum(_more_work_ns(row) for row in calls)
    if more >= least:
        return "more work"
    return "slower work" if _total(calls) - more >= least else None


def _is_even(rows: Sequence[Row], limits: ExcessThresholds) -> bool:
    """Whether what comes and goes does so in the same steps, and in many calls of each name: where
    a scheduler strikes, few calls have all of it."""
    heavy = [
        r
        for r in rows
        if float(r["excess_ns"]) >= limits.min_heavy_ratio * float(rows[0]["excess_ns"])
    ]
    steps = [set(row["steps"]) for row in heavy]
    if len(set.intersection(*steps)) < limits.min_place_ratio * len(set.union(*steps)):
        return False
    even = [
        row
        for row in rows
        if row["kind"] in _CALLS
        and float(row["longest_ns"])
        <= limits.min_place_ratio * (float(row["affected_ns"]) - float(row["affected_peer_ns"]))
    ]
    return _total(even) >= limits.min_place_ratio * _total(rows)


def _at_random_ns(row: Row, limits: ExcessThresholds) -> float:
    """The part of a row's excess that comes and goes: not in its median step, or, of few steps,
    in a single call."""
    excess = float(row["excess_ns"])
    if int(row["judged_steps_count"]) >= limits.min_judged_count:
        return min(excess, max(0.0, float(row["over_usual_ns"])))
    calls = float(row["peer_calls_count"] or 0)
    usual_ns = float(row["peer_ns"]) / calls if calls > 0 else 0.0
    return min(excess, max(0.0, float(row["longest_ns"]) - usual_ns))


def _more_work_ns(row: Row) -> float:
    """The part of a row's excess that calls beyond its peers', and inputs larger than theirs, would
    take at their pace: as much longer as the inputs are larger. Operations that outnumber theirs
    are others, whose pace they do not tell: all of it."""
    calls, peers = float(row["calls_count"]), float(row["peer_calls_count"] or 0)
    if peers <= 0 or (row["kind"] != "call" and calls - peers > peers):
        return float(row["excess_ns"])
    larger = max(0.0, float(row["input_ratio"] or 1.0) - 1)
    more_calls = max(0.0, calls - peers) + calls * larger
    return min(float(row["excess_ns"]), more_calls * float(row["peer_ns"]) / peers)


_WORKING_CALLS = ("launch", "memcpy", "memset")
"""In the names of runtime calls that give a device something to do; the others manage it."""


def _is_training(row: Row) -> bool:
    name = str(row["name"]).lower()
    return row["kind"] != "call" or any(word in name for word in _WORKING_CALLS)


# --- words ---------------------------------------------------------------------------------------


def label(row: Row) -> str:
    """What a part is: the operator, call or kernel, or what a pause lies between."""
    kind = str(row["kind"])
    words = {
        "pause": f"nothing recorded {row['name']}",
        "range": f"range `{str(row['path']).rpartition('/')[2]}`",
        "between": "between operators",
    }
    return words.get(kind, f"{kind} {short(str(row['name']))}")


def _parts(rows: Sequence[Row]) -> str:
    return listed([label(row) for row in rows[:2]] + (["others"] if rows[2:] else []))


def _more(rows: Sequence[Row]) -> str:
    row = max(rows, key=_more_work_ns)
    others = f" and of {plural(len(rows) - 1, 'other')}" if len(rows) > 1 else ""
    if row["input_ratio"] is not None and row["calls_count"] <= (row["peer_calls_count"] or 0):
        times = f"{float(row['input_ratio']):.2g}x those of its peers"
        what = "larger inputs" if row["kind"] == "operator" else "larger calls"
        return f"{what} of {short(str(row['name']))} ({times}){others}"
    count = f"{per_step(row['calls_count'])} a step, its peers {per_step(row['peer_calls_count'])}"
    return f"more calls of {short(str(row['name']))} ({count}){others}"


def _slower(rows: Sequence[Row]) -> str:
    calls = [r for r in rows if float(r["peer_ns"] or 0) > 0]
    if not calls:
        return f"slower {_parts(rows)}"
    # Steps that were chosen for being long say nothing of all, unless the others are as the peers'.
    passing_ns = sum(float(r["over_usual_ns"]) for r in calls)
    is_passing = passing_ns >= _total(calls) - passing_ns
    own, peer = ("affected_ns", "affected_peer_ns") if is_passing else ("own_ns", "peer_ns")
    ratio = sum(float(r[own]) for r in calls) / sum(float(r[peer]) for r in calls)
    names = listed([short(str(r["name"])) for r in calls[:2]])
    others = f" and {plural(len(calls[2:]), 'other')}" if calls[2:] else ""
    verb = "takes" if len(calls) == 1 else "take"
    return f"{names}{others} {verb} {ratio:.1f}x at as many calls"


def _stretched(rows: Sequence[Row]) -> str:
    longest = max(int(row["longest_ns"]) for row in rows)
    return (
        f"{plural(len(rows), 'operator')}, calls and pauses stretched at random, one by up to "
        f"{seconds(longest / 1e9)}, as where a CPU is shared or throttled"
    )


def _pause(rows: Sequence[Row]) -> str:
    pauses = [row for row in rows if row["kind"] == "pause"]
    if not pauses:
        return ""
    if not pauses[1:]:
        return f"nothing recorded {pauses[0]['name']}"
    return f"nothing recorded in {plural(len(pauses), 'place')}, first {pauses[0]['name']}"


_WHAT: Mapping[Nature, Callable[[Sequence[Row]], str]] = {
    "more work": _more,
    "slower work": _slower,
    "stretched": _stretched,
    "pause": _pause,
}

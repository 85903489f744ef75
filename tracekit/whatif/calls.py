"""Matched collectives as a replay sees them: members, transfers, and how steps are timed.

The transfer of a member is its measured end less the last start that it had to wait for: the
recorded duration of a collective includes waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from tracekit.errors import UsageError
from tracekit.whatif.causes import Cause
from tracekit.whatif.executor import Executor, Program
from tracekit.whatif.metrics import MAX_SIMULATION_ERROR_RATIO, error_ratio
from tracekit.whatif.operations import Floats, Ints

MAX_CLOCK_SPREAD_NS = 20_000.0
"""Ends of calls that differ by more between two clocks do not tell how far these are apart."""

MAX_UNMATCHED_RATIO = 0.05
"""Share of the step that unmatched collectives may stop computing for."""

_ROOT_FIRST = frozenset(("broadcast", "scatter"))
_ROOT_LAST = frozenset(("reduce", "gather"))


def refused_because(base_s: float, replayed_s: float, unmatched_ratio: float) -> str | None:
    """Why a replay is not believed; ``unmatched_ratio``: share of the step in which the worst rank
    computed nothing while nothing but unmatched communication ran."""
    if unmatched_ratio > MAX_UNMATCHED_RATIO:
        return (
            f"for {unmatched_ratio:.1%} of the step (limit {MAX_UNMATCHED_RATIO:.0%}) a rank "
            "computed nothing while a collective ran that is not matched across ranks: nobody knows"
            " for whom it waited"
        )
    error = error_ratio(base_s, replayed_s)
    if error <= MAX_SIMULATION_ERROR_RATIO:
        return None
    return (
        f"the replay misses the measured step time by {error:.1%} (limit "
        f"{MAX_SIMULATION_ERROR_RATIO:.0%}): ranks depend on each other in ways that the matched "
        "collectives do not show"
    )


class _Settled(Struct, frozen=True):
    """What a replay needs of a call each time, for its members in one order."""

    members: Sequence[int]
    transfers_ns: Floats
    """(member, 1)."""
    alone: npt.NDArray[np.bool_] | None
    """Members who left before the last had entered: they did not wait for it. None: nobody."""
    needed: Sequence[Sequence[int]]
    """By member the rows of those that it waits for; empty where all wait for all."""


class Call(Struct):
    """One matched collective (or a pair of send and receive)."""

    op: str
    kind: str
    lane: str
    size_bytes: int
    root: int | None
    timeline: str
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    sends: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    """Senders on the host that stood still until their receiver asked."""
    transfers: dict[int, int] | None = None
    """Kept once they have been asked for."""
    settled: _Settled | None = None
    """Kept likewise."""

    def with_ends(self, ends: dict[int, int]) -> Call:
        """The call with other ends, and so without what was kept of its own."""
        return replace(self, ends=ends, transfers=None, settled=None)

    @property
    def all_needed(self) -> bool:
        """Whether nobody can leave before all have entered."""
        is_rooted = self.op in _ROOT_FIRST or self.op in _ROOT_LAST
        return not is_rooted and not (self.sends and self.timeline == "host")

    def is_sent_on_host_by(self, rank: int) -> bool:
        """Whether it is a message that this rank hands to a library of the host."""
        return self.timeline == "host" and rank in self.sends

    def needed(self, rank: int) -> Iterable[int]:
        """Members that must have entered before this one can leave."""
        if self.op in _ROOT_FIRST and self.root in self.starts:
            return {rank, self.root} if self.root is not None else {rank}
        if self.op in _ROOT_LAST and self.root in self.starts and rank != self.root:
            return (rank,)
        if self.is_sent_on_host_by(rank) and rank not in self.held:
            return (rank,)
        return self.starts


def calls_of(
    rows: Sequence[Mapping[str, Any]], begins: Mapping[int, int], ends: Mapping[int, int]
) -> tuple[dict[int, Call], int]:
    """Calls whose members are all recorded and lie in the window, and how many others there are."""
    calls: dict[int, Call] = {}
    broken: set[int] = set()
    unmatched = 0
    for row in rows:
        number, rank = row["instance_id"], row["rank"]
        if rank not in begins:
            continue
        is_inside = begins[rank] <= row["start_ns"] and row["end_ns"] <= ends[rank]
        if number is None:
            unmatched += is_inside
            continue
        if not is_inside:
            broken.add(number)
        op = str(row["op"] or "unknown")
        is_pair = op in ("send", "recv")
        call = calls.setdefault(
            number,
            Call(
                op="send_recv" if is_pair else op,
                kind=str(row["kind"] or ("pp" if is_pair else "unknown")),
                lane=str(row["group_id"]),
                size_bytes=int(row["message_bytes"] or 0),
                root=row["root"],
                timeline=str(row["timeline"]),
            ),
        )
        if op == "send":
            call.sends.add(rank)
        call.starts[rank], call.ends[rank] = int(row["start_ns"]), int(row["end_ns"])
        members = 2 if is_pair else row["members_count"]
        if members is None:
            broken.add(number)
    sizes = {
        row["instance_id"]: 2 if row["op"] in ("send", "recv") else row["members_count"]
        for row in rows
    }
    whole = {
        n: c for n, c in calls.items() if n not in broken and len(c.starts) >= max(2, sizes[n] or 0)
    }
    unmatched += sum(len(c.starts) for n, c in calls.items() if n not in whole)
    return whole, unmatched


def unbroken(steps: Sequence[int], spans: Mapping[int, Mapping[int, tuple[int, int]]]) -> list[int]:
    """The longest run of steps without a hole, in which each begins where the last ended."""
    best: list[int] = []
    run: list[int] = []
    for step in steps:
        if run and step != run[-1] + 1:
            run = []
        run.append(step)
        if len(run) > len(best):
            best = list(run)
    return best


class Scenarios(Struct):
    """Per scenario (columns): how much of the measured and of the ideal transfers counts."""

    transfer: dict[str, tuple[Floats, Floats]]
    """By kind of communication: factors of the measured and of the ideal transfer."""
    count: int


def transfers_of(call: Call) -> dict[int, int]:
    """Per member: measured end less the last start that it had to wait for."""
    if call.transfers is not None:
        return call.transfers
    transfers = call.transfers = {}
    last = last_starts(call)
    for rank, end_ns in call.ends.items():
        transfers[rank] = end_ns - (last[rank] if last[rank] <= end_ns else call.starts[rank])
    return transfers


def last_starts(call: Call) -> dict[int, int]:
    """Per member: the last start that it had to wait for."""
    if call.all_needed:
        return dict.fromkeys(call.starts, max(call.starts.values()))
    return {r: max(call.starts[m] for m in call.needed(r)) for r in call.starts}


class _Transfers(Struct, frozen=True):
    """The matched calls of a window, as a replay's exchanges."""

    calls: Mapping[int, Call]
    ideal_ns: Mapping[int, float]
    how: Scenarios

    def size(self, number: int) -> int:
        return len(self.calls[number].starts)

    def leave(self, number: int, members: Sequence[int], entered: Floats) -> Floats:
        call = self.calls[number]
        measured_how, ideal_how = self.how.transfer[class_of(call)]
        known = call.settled
        if known is None or known.members != members:
            known = call.settled = _settled(call, members)
        took = known.transfers_ns * measured_how + self.ideal_ns[number] * ideal_how
        if known.needed:
            left = np.stack([entered[rows].max(axis=0) for rows in known.needed]) + took
        else:
            left = entered.max(axis=0) + took
        if known.alone is not None:
            left[known.alone] = entered[known.alone] + took[known.alone]
        return left


def step_times(
    windows: Sequence[Mapping[int, Call]],
    programs: Sequence[Mapping[int, Program]],
    variant: Mapping[int, Ints],
    how: Scenarios,
) -> Floats:
    """Length of each step in each scenario, in ns; of each window its calls and its programs."""
    parts = []
    for calls, by_rank, ideal_ns in zip(windows, programs, ideal_transfers(windows), strict=True):
        ends = Executor(_Transfers(calls, ideal_ns, how), by_rank, variant, how.count).run()
        begins = [p.begin_ns for p in by_rank.values()]
        begin = np.full((1, how.count), float(max(begins) - min(begins)))
        parts.append(np.diff(ends, axis=0, prepend=begin))
    return np.concatenate(parts)


def step_s(
    windows: Sequence[Mapping[int, Call]], programs: Sequence[Mapping[int, Program]]
) -> float:
    """Mean length of a step, in s, by the programs' first variants and the measured transfers."""
    first = {r: np.zeros(1, np.int64) for by_rank in programs for r in by_rank}
    whole, none = np.ones(1), np.zeros(1)
    how = Scenarios(defaultdict(lambda: (whole, none)), 1)
    return float(step_times(windows, programs, first, how).mean()) / 1e9


def _settled(call: Call, members: Sequence[int]) -> _Settled:
    transfers, last = transfers_of(call), last_starts(call)
    alone = np.array([last[r] > call.ends[r] for r in members])
    row = {r: i for i, r in enumerate(members)}
    return _Settled(
        members,
        np.array([[float(transfers[r])] for r in members]),
        alone if alone.any() else None,
        () if call.all_needed else [[row[m] for m in call.needed(r)] for r in members],
    )


def settled_clocks(
    calls: Iterable[Call],
    clocks: Mapping[int, tuple[int, int]],
    pairs: Mapping[tuple[int, int], int],
) -> dict[int, int]:
    """By clock, what to add to its times, in ns: within what is known of it and no more.

    ``clocks`` and ``pairs`` as in Places. A transfer between two clocks would be wrong by what they
    disagree, in every call. All members leave an all-reduce and the like together, give or take
    what does not depend on the clocks, so the usual difference of their ends is the clocks', if the
    differences agree with each other. Clocks are settled one after another, each against the one
    that bounds it best: two that are known to agree stay together, whatever their ends say.
    """
    errors = dict(sorted(clocks.values()))
    if not errors:
        return {}
    ends = _Ends(calls, {rank: clock for rank, (clock, _) in clocks.items()}, errors)
    bounds = {(a, b): errors[a] + errors[b] for a, b in ends.beside_best if (a, b) not in pairs}
    near = _Near(pairs, bounds)
    shifts: dict[int, int] = {}

    def edges(clock: int) -> Iterator[tuple[int, float, int, int, int]]:
        """What bounds others by this clock, the best first: with how much their ends scatter, and
        by how much they come later. Looked at when it is asked for: of all pairs few are."""
        for bound, alike in near.best_first(clock):
            told = []
            for other in alike:
                pair = min(clock, other), max(clock, other)
                known = ends.apart(*pair, everywhere=pair in pairs)
                if known is not None:
                    later, scatter = known
                    told.append((bound, scatter, other, -later if clock < other else later, clock))
            yield from sorted(told)

    first = min(errors, key=lambda c: (errors[c], c))
    # Each settled clock has its best edge here, so the best of all is the first.
    nobody: Iterator[tuple[int, float, int, int, int]] = iter(())
    heap = [((0, 0.0, first, 0, first), nobody)]
    while heap:
        (bound, _, clock, by, against), others = heappop(heap)
        if clock not in shifts:
            shift = shifts.get(against, 0) + max(-bound, min(bound, by))
            shifts[clock] = max(-errors[clock], min(errors[clock], shift))
            near.leave_out(clock)
            _push(heap, edges(clock))
        _push(heap, others)
    return {c: ns for c, ns in shifts.items() if ns}


def _push(heap: list[Any], others: Iterator[tuple[int, float, int, int, int]]) -> None:
    best = next(others, None)
    if best is not None:
        heappush(heap, (best, others))


class ClockPairs(Mapping[tuple[int, int], int]):
    """By two clocks, the lower first, a number of ns: columns in the order of the pairs.

    Of a thousand clocks there are half a million pairs, of which few are looked at.
    """

    def __init__(self, clocks: Ints, others: Ints, values: Ints) -> None:
        self.clocks, self.others, self.values_ns = clocks, others, values

    @classmethod
    def of(cls, pairs: Mapping[tuple[int, int], int]) -> ClockPairs:
        """The same of any mapping."""
        if isinstance(pairs, cls):
            return pairs
        rows = np.array(sorted((*pair, ns) for pair, ns in pairs.items()), np.int64)
        return cls(*rows.reshape(-1, 3).T)

    def _row(self, pair: object) -> int:
        """Where a pair stands; -1: nowhere."""
        if not isinstance(pair, tuple):
            return -1
        clock, other = pair
        first, end = (int(np.searchsorted(self.clocks, clock, side)) for side in ("left", "right"))
        row = first + int(np.searchsorted(self.others[first:end], other))
        return row if row < end and self.others[row] == other else -1

    def __contains__(self, pair: object) -> bool:
        return self._row(pair) >= 0

    def __getitem__(self, pair: tuple[int, int]) -> int:
        row = self._row(pair)
        if row < 0:
            raise KeyError(pair)
        return int(self.values_ns[row])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.clocks.tolist(), self.others.tolist(), strict=True)

    def __len__(self) -> int:
        return len(self.clocks)


class _Near:
    """By how many ns the difference of each clock from each other may be wrong."""

    def __init__(self, *bounds: Mapping[tuple[int, int], int]) -> None:
        told = [ClockPairs.of(b) for b in bounds]
        one = np.concatenate([t.clocks for t in told])
        other = np.concatenate([t.others for t in told])
        self._clocks = np.unique(np.concatenate([np.unique(one), np.unique(other)]))
        numbers = np.min_scalar_type(len(self._clocks))  # the narrower, the faster to sort
        one, other = (np.searchsorted(self._clocks, c).astype(numbers) for c in (one, other))
        order = np.argsort(np.concatenate([one, other]), kind="stable")
        self._other = np.concatenate([other, one])[order]
        self._bound = np.tile(np.concatenate([t.values_ns for t in told]), 2)[order]
        counts = np.bincount(one, minlength=len(self._clocks))
        counts += np.bincount(other, minlength=len(self._clocks))
        self._first = np.concatenate([[0], np.cumsum(counts)])
        self._is_left_out = np.zeros(len(self._clocks), np.bool_)

    def leave_out(self, clock: int) -> None:
        """Say no more of a clock."""
        self._is_left_out[self._clocks == clock] = True

    def best_first(self, clock: int) -> Iterator[tuple[int, list[int]]]:
        """Bounds, the least first, and the other clocks of each: those that are not left out when
        it is asked for."""
        number = int(np.searchsorted(self._clocks, clock))
        if number == len(self._clocks) or self._clocks[number] != clock:
            return
        mine = slice(self._first[number], self._first[number + 1])
        bounds, others = self._bound[mine], self._other[mine]
        order = np.lexsort((others, bounds))
        bounds, others = bounds[order], others[order]
        at = 0
        while at < len(bounds):
            left = at + np.flatnonzero(~self._is_left_out[others[at:]])
            if not len(left):
                return
            bound = bounds[left[0]]
            at = int(np.searchsorted(bounds, bound, side="right"))
            yield int(bound), self._clocks[others[left[left < at]]].tolist()


class _Ends:
    """When clocks left the calls that all members leave together, of each the middle one."""

    def __init__(
        self, calls: Iterable[Call], clock_of: Mapping[int, int], errors: Mapping[int, int]
    ) -> None:
        self._middles: dict[int, dict[int, int]] = defaultdict(dict)
        """By clock and call."""
        self._best: list[int] = []
        """By call the clock that is known best."""
        self.beside_best: dict[tuple[int, int], None] = {}
        """That and each other of its call, the lower first."""
        by_error = {
            c: place for place, c in enumerate(sorted(errors, key=lambda c: (errors[c], c)))
        }
        for call in calls:
            if call.sends or call.op in _ROOT_FIRST or call.op in _ROOT_LAST:
                continue
            ends: dict[int, list[int]] = defaultdict(list)
            for rank, end_ns in call.ends.items():
                if rank in clock_of:
                    ends[clock_of[rank]].append(end_ns)
            best = min(ends, key=by_error.__getitem__, default=-1)
            for clock, left in ends.items():
                left.sort()
                self._middles[clock][len(self._best)] = left[len(left) // 2]
                if clock != best:
                    self.beside_best[min(best, clock), max(best, clock)] = None
            self._best.append(best)

    def apart(self, clock_a: int, clock_b: int, *, everywhere: bool) -> tuple[int, float] | None:
        """By how much the second usually leaves later, in ns, and the width of its quartiles; None
        where that is so wide that it tells nothing of the clocks, or no call does. Of two clocks
        whose difference is not known only calls count in which one is the best known."""
        left, also = self._middles.get(clock_a, {}), self._middles.get(clock_b, {})
        later = sorted(
            float(also[call] - end_ns)
            for call, end_ns in left.items()
            if call in also and (everywhere or self._best[call] in (clock_a, clock_b))
        )
        if not later:
            return None
        low, usual, high = (quantile(later, share) for share in (0.25, 0.5, 0.75))
        scatter = high - low
        is_told = scatter <= max(MAX_CLOCK_SPREAD_NS, abs(usual) / 2)
        return (round(usual), scatter) if is_told else None


def quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest of sorted values, to the bit as numpy.percentile has it, whose call
    takes longer than all else here."""
    place = share * (len(ordered) - 1)
    below = int(place)
    rest, low = place - below, ordered[below]
    high = ordered[min(below + 1, len(ordered) - 1)]
    return low + (high - low) * rest if rest < 0.5 else high - (high - low) * (1 - rest)


def class_of(call: Call) -> str:
    return f"{call.kind}:{call.op}"


def ideal_transfers(windows: Sequence[Mapping[int, Call]]) -> list[dict[int, float]]:
    """By call the median transfer of calls with the same operation, size and members, in ns."""
    samples: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    for window in windows:
        for call in window.values():
            samples[alike(call)] += [float(t) for t in transfers_of(call).values()]
    typical = {k: float(np.median(v)) for k, v in samples.items()}
    return [{n: typical[alike(c)] for n, c in w.items()} for w in windows]


def alike(call: Call) -> tuple[str, str, int, int]:
    return call.kind, call.op, call.size_bytes, len(call.starts)


OF_RANKS = frozenset(("rank", "stage", "dp", "host"))
"""Causes that name ranks."""


class Places(Struct, frozen=True):
    """Where ranks are, as far as it is known."""

    stages: Mapping[int, int] = field(default_factory=dict)
    replicas: Mapping[int, int] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    clocks: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By rank its clock, and by how many ns that may be wrong against the reference's."""
    pairs: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By two clocks, the lower first, by how many ns their difference may be wrong; where that is
    less than their errors added up."""

    def ranks_of(self, cause: Cause, ranks: Sequence[int]) -> list[int]:
        """The ranks that a cause names; UsageError where the job has none such."""
        if cause.kind in ("rank", "link"):
            known: Mapping[int, Any] = {r: r for r in ranks}
        else:
            known = {"stage": self.stages, "dp": self.replicas, "host": self.hosts}[cause.kind]
        by_name: dict[str, list[int]] = defaultdict(list)
        for rank in ranks:
            if rank in known:
                by_name[str(known[rank])].append(rank)
        word = {"link": "rank", "dp": "replica"}.get(cause.kind, cause.kind)
        named: list[int] = []
        for value in cause.value.split(","):
            if value not in by_name:
                raise UsageError(
                    f"{cause.text}: this job has no {word} {value!r}",
                    hint=f"it has {word} {_some(list(by_name))}; several as {cause.kind}=A,B"
                    if by_name
                    else f"which rank is which {word} is not known of this job",
                )
            named += by_name[value]
        return sorted(set(named))


def _some(names: list[str], count: int = 8) -> str:
    names.sort(key=lambda n: (0, int(n), n) if n.isdecimal() else (1, 0, n))
    return ", ".join(names[:count]) + (f", ... {names[-1]}" if len(names) > count else "")


def change_transfers(
    cause: Cause, transfer: Mapping[str, tuple[Floats, Floats]], column: int
) -> None:
    """Set one scenario's transfers to those without (or with another amount of) a cause.

    ``transfer``: by kind of call, the factors of its measured and of its ideal time. UsageError
    where the cause names nothing of the job.
    """
    factor = cause.factor
    chosen = [
        k
        for k in transfer
        if (cause.kind == "comm" and cause.value in (k.split(":")[0], "all"))
        or (cause.kind == "op" and cause.value in (k, k.split(":")[1]))
    ]
    if not chosen:
        raise UsageError(
            f"{cause.text}: this job has no such communication",
            hint=f"rank=N, comm=all or comm={'|'.join(sorted({k.split(':')[0] for k in transfer}))}"
            f", op={'|'.join(sorted({k.split(':')[1] for k in transfer}))}",
        )
    for kind in chosen:
        measured_how, ideal_how = transfer[kind]
        if factor is not None:
            measured_how[column] = factor
        elif cause.kind == "comm":
            measured_how[column] = 0.0
        else:
            measured_how[column], ideal_how[column] = 0.0, 1.0

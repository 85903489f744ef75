"""What rules over a host's counters share: which readings may be the job's, and whom they explain.

A host that lacks something harms a job only if its ranks are late by it, or the job's steps suffer
in the same hours. A task that is delayed has waited for as long; so the share of time in which
tasks waited, beyond what is usual elsewhere or at other times, bounds the delay that it can be the
reason of. Nobody is named for waiting alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean, median

from msgspec import Struct
from msgspec.structs import replace

from tracekit.findings import Evidence, Finding, Impact, Scope, Severity, When, severity_of
from tracekit.rules import logged
from tracekit.rules.base import NO_STEPS, Facts, Row, Rule, RuleOutcome
from tracekit.rules.excess import QUERY as EXCESS
from tracekit.rules.excess import ExcessThresholds, where_it_lies
from tracekit.rules.facts import Advice
from tracekit.rules.lateness.late import LateRank, delay_ns
from tracekit.rules.lateness.limits import ABSENT_WAITS, QUERIES, SlowerThresholds
from tracekit.rules.lateness.price import price
from tracekit.rules.lateness.search import late_ranks, slower_ranks
from tracekit.rules.lateness.telling import absent_note, matched_note, waiting, why_unmatched
from tracekit.rules.logged import SUMMARY_QUERY, Log
from tracekit.rules.slow_gpu import has_uneven_work
from tracekit.rules.steps import StepKey, utc
from tracekit.rules.thresholds import threshold
from tracekit.wording import plural, ranks_phrase, safe, share, some, span

NEEDS = "host counters (sadf -j, /proc/pressure, cgroup files, node_exporter)"
CAPTURE = "tracekit capture --what host"
PRESSURE = "host_pressure"
STEPS = "host_pressure_steps"
EPISODES = "episode_pressure"
OWN_STALLS = ("gc_pause", "checkpoint_stall", "compile_stall", "allocator_stall")
"""Stalls that no want of a host makes, though it may lengthen them."""
QUERIES_READ = (
    *(*QUERIES, ABSENT_WAITS, "expert_load", EXCESS, *OWN_STALLS),
    *(PRESSURE, STEPS, EPISODES, SUMMARY_QUERY),
)
KERNEL_QUERIES = ("straggler", "late_steps", "match_coverage", "comm_summary", ABSENT_WAITS, EXCESS)
"""Without which nobody is late; the log's stretches need none."""
rule = partial(
    Rule,
    topic="what hosts lack",
    needs=NEEDS,
    kernel_queries=KERNEL_QUERIES,
    absorbs=("slow host",),
)
"""A rule over what a host gives too little of, with what these declare alike."""
TOPIC_NEEDS = "traces of the ranks, or a training log with times, beside the hosts' counters"


class HostThresholds(SlowerThresholds, ExcessThresholds):
    """When what a host lacks is why its ranks are late."""

    max_compute_ratio: float = threshold(
        1.05, "computing time over its peers' median; above it the GPU or the work is to blame"
    )
    max_stalled_ratio: float = threshold(
        0.5, "share of the delay that stalls of its own explain; then it is theirs"
    )
    min_waited_ratio: float = threshold(
        0.05, "share of time in which tasks waited: 5 % is the least delay that is called late"
    )
    min_explained_ratio: float = threshold(
        0.5,
        "of the delay that the waiting must cover beyond what is usual: of the rest nothing could"
        " be larger",
    )
    min_covered_ratio: float = threshold(
        0.5, "share of the time in question that readings cover: else most of it is not known"
    )
    min_other_steps_count: int = threshold(
        3, "steps without the delay, to say what the host lacks otherwise"
    )


class Lack(Struct, frozen=True):
    """Something that a host may lack."""

    resource: str
    """As in query host_pressure."""
    words: str
    """What its tasks did, to follow the host's name: ``waited for memory``."""
    of: str
    """What the share is of: the time, or a quota's periods."""
    is_own: bool
    """Whether nobody but the machine itself can make it wait: a quota, a hypervisor. What merely
    waits for a CPU may be what is always there."""


def by_series(rows: Iterable[Row]) -> dict[tuple[str, str | None, str], list[Row]]:
    """Rows of known hosts by host, control group and resource."""
    series: dict[tuple[str, str | None, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["host"] is not None:
            series[str(row["host"]), row["cgroup"], str(row["resource"])].append(row)
    return dict(series)


def judged(
    facts: Facts,
    limits: HostThresholds,
    lacks: Sequence[Lack],
    needs: str,
    *,
    confirm: tuple[str, ...],
    remedy: tuple[str, ...],
    own_stalls: Sequence[str] = OWN_STALLS,
) -> RuleOutcome:
    """One finding a host that lacks one of these where its ranks are late, and one a stretch of
    the job's history in which a host did."""
    names = {lack.resource for lack in lacks}
    if not any(row["resource"] in names for row in facts.of(PRESSURE)):
        return facts.lacking(needs if facts.of(PRESSURE) else NEEDS, CAPTURE)
    has_log = bool(facts.of(SUMMARY_QUERY))
    why = _why_blind(facts, limits)
    if why is not None and not has_log:
        return facts.lacking(*why)
    groups = _groups(facts)
    advice: Advice = {"confirm": confirm, "remedy": remedy}
    findings: list[Finding] = []
    if why is None:
        findings += _of_ranks(facts, limits, lacks, groups, own_stalls, advice)
    named = {host for f in findings for host in f.scope.hosts}
    findings += [
        f
        for f in _of_history(facts, limits, lacks, groups, advice)
        if named.isdisjoint(f.scope.hosts)
    ]
    return RuleOutcome(tuple(findings))


def _why_blind(facts: Facts, limits: HostThresholds) -> tuple[str, str | None] | None:
    """Why the traces cannot say who is late; None where they can."""
    if not facts.ranks:
        return TOPIC_NEEDS, "profile all ranks in the same steps"
    if matched_note(facts) is None:
        return why_unmatched(facts), "profile all ranks in the same steps"
    if not len(facts.steps):
        return NO_STEPS
    if not facts.has_gpu and has_uneven_work(facts, limits):
        return "the work of each rank: experts get unequal shares of the tokens", None
    return None


def _groups(facts: Facts) -> dict[str, frozenset[str | None]]:
    """By host, the control groups that may hold the job: each holds, or is held by, every other
    one that was given. Of groups side by side one may be another tenant's."""
    given: dict[str, set[str]] = defaultdict(set)
    for row in facts.of(PRESSURE):
        if (host := machine(facts, row)) is not None:
            given[host].update(() if row["cgroup"] is None else (str(row["cgroup"]),))
    return {
        host: frozenset(
            {None, *(g for g in groups if all(_is_nested(g, other) for other in groups))}
        )
        for host, groups in given.items()
    }


def machine(facts: Facts, row: Row) -> str | None:
    """The host of a row; of one that nobody named its file, where the job's hosts are not known."""
    if row["host"] is not None or facts.job.hosts or facts.job.placed_hosts:
        return None if row["host"] is None else str(row["host"])
    source = row["own_source_id"]
    return f"the machine of {facts.sources.get(source, f'source {source}')}"


def _is_nested(group: str, other: str) -> bool:
    short, long = sorted((group.rstrip("/"), other.rstrip("/")), key=len)
    return long == short or long.startswith(f"{short}/")


# --- ranks that are late --------------------------------------------------------------------------


class _Shortage(Struct, frozen=True):
    lack: Lack
    rows: tuple[Row, ...]
    ratio: float
    """Share in the late steps."""
    usual_ratio: float | None
    """On the other hosts in their steps, else on this one in its other steps."""
    usual: str
    needed_ratio: float


def _of_ranks(
    facts: Facts,
    limits: HostThresholds,
    lacks: Sequence[Lack],
    groups: Mapping[str, frozenset[str | None]],
    own_stalls: Sequence[str],
    advice: Advice,
) -> list[Finding]:
    late = late_ranks(facts, limits) or slower_ranks(facts, limits)
    by_host: dict[str, list[LateRank]] = defaultdict(list)
    for late_rank in late:
        host = facts.job.hosts.get(late_rank.rank)
        if host is not None and _may_be_its_host(facts, late_rank, limits, own_stalls):
            by_host[host].append(late_rank)
    findings = []
    for host, members in sorted(by_host.items()):
        beyond = [f for lack in lacks if (f := _beyond(facts, limits, lack, host, members, groups))]
        if beyond:
            best = max(beyond, key=lambda f: f.ratio - (f.usual_ratio or 0.0))
            findings.append(_late_finding(facts, limits, host, members, best, advice))
    return findings


def _may_be_its_host(
    facts: Facts, late: LateRank, limits: HostThresholds, own_stalls: Sequence[str]
) -> bool:
    """Whether a rank is late by something that its host can be the reason of."""
    if facts.has_gpu and (
        late.compute_ratio is None or late.compute_ratio >= limits.max_compute_ratio
    ):
        return False
    steady = set(facts.steps.keys)
    stalled_ns = sum(
        float(row["exposed_ns"])
        for query in own_stalls
        for row in facts.of(query)
        if row["rank"] == late.rank and StepKey.of(row) in steady
    ) / len(steady)
    # Ranks that are late side by side may delay nobody beyond one another.
    if stalled_ns > 0 and stalled_ns >= limits.max_stalled_ratio * delay_ns(late):
        return False
    excess = where_it_lies(facts, late.rank, delay_ns(late))
    return excess is None or excess.nature != "more work"


def _beyond(
    facts: Facts,
    limits: HostThresholds,
    lack: Lack,
    host: str,
    members: Sequence[LateRank],
    groups: Mapping[str, frozenset[str | None]],
) -> _Shortage | None:
    """The series of the host whose tasks waited long enough in the late steps to be the reason."""
    steps = facts.steps
    late = {key for member in members for key in member.late_keys} or set(steps.keys)
    # All of a delay lies in the steps that have it.
    delay = max(delay_ns(member) for member in members) * len(steps) / len(late)
    needed = delay / fmean(steps.job_dur_ns(key) for key in late)
    elsewhere = _elsewhere(facts, lack, host, groups)
    best: _Shortage | None = None
    for (where, group, resource), rows in by_series(facts.of(STEPS)).items():
        if where != host or resource != lack.resource or group not in groups.get(host, ()):
            continue
        shares = {
            StepKey(int(r["attempt"]), int(r["capture_id"]), int(r["step"])): r
            for r in rows
            if r["some_ratio"] is not None and r["covered_ratio"] >= limits.min_covered_ratio
        }
        here = [shares[key] for key in late if key in shares]
        if len(here) < limits.min_covered_ratio * len(late):
            continue
        ratio = fmean(float(r["some_ratio"]) for r in here)
        rest = [
            float(shares[key]["some_ratio"])
            for key in steps.keys
            if key in shares and key not in late
        ]
        rest_ratio = fmean(rest) if len(rest) >= limits.min_other_steps_count else None
        if rest_ratio is not None and rest_ratio > ratio:
            continue  # it lacked more in the steps in which nobody waited for it
        usual, words = rest_ratio, "in its other steps"
        if elsewhere is not None:
            usual, words = elsewhere, "on the other hosts"
        if usual is None and (not lack.is_own or len(set(facts.job.hosts.values())) == 1):
            continue
        beyond = ratio - (usual or 0.0)
        if ratio < limits.min_waited_ratio or beyond < limits.min_explained_ratio * needed:
            continue
        if best is None or beyond > best.ratio - (best.usual_ratio or 0.0):
            here.sort(key=lambda r: -float(r["some_ratio"]))
            best = _Shortage(lack, tuple(here), ratio, usual, words, needed)
    return best


def _elsewhere(
    facts: Facts, lack: Lack, host: str, groups: Mapping[str, frozenset[str | None]]
) -> float | None:
    """What the tasks of the job's other hosts typically waited in its steps; None: not known."""
    members = set(facts.job.hosts.values()) | set(facts.job.placed_hosts.values())
    shares: dict[str, float] = {}
    for row in facts.of(PRESSURE):
        other = row["host"]
        if other == host or other not in members or row["resource"] != lack.resource:
            continue
        if row["step_ratio"] is not None and row["cgroup"] in groups[str(other)]:
            shares[other] = max(shares.get(other, 0.0), float(row["step_ratio"]))
    return median(shares.values()) if shares else None


def _late_finding(
    facts: Facts,
    limits: HostThresholds,
    host: str,
    members: Sequence[LateRank],
    worst: _Shortage,
    advice: Advice,
) -> Finding:
    ranks = sorted(member.rank for member in members)
    keys = sorted({key for member in members for key in member.late_keys}) or facts.steps.keys
    cost = price(facts, members)
    group = worst.rows[0]["cgroup"]
    usual = "" if worst.usual_ratio is None else f" ({share(worst.usual_ratio)} {worst.usual})"
    subject = f"{safe(host)}{f', control group {safe(group)},' if group else ''}"
    return facts.finding(
        facts.scope(ranks, keys),
        f"Tasks of {subject} {worst.lack.words} for {share(worst.ratio)} of {worst.lack.of} in "
        f"{plural(len(keys), 'step')} in which {lower(ranks_phrase(ranks, facts.ranks))} "
        f"{'is' if len(ranks) == 1 else 'are'} late{usual}: the others wait "
        f"{waiting(facts, cost)}.",
        (
            Evidence.ratio(
                f"tasks {worst.lack.words}, share of {worst.lack.of} in the late steps, beyond "
                "what is usual",
                worst.ratio - (worst.usual_ratio or 0.0),
                limits.min_explained_ratio * worst.needed_ratio,
                STEPS,
                facts.readings(worst.rows),
            ),
            *(
                Evidence.seconds(
                    f"exposed delay by rank {member.rank}, mean step",
                    delay_ns(member),
                    limits.min_cost_ratio * facts.steps.step_ns,
                    "late_steps" if member.is_matched else "step_breakdown",
                )
                for member in members
            ),
        ),
        by=("counters", "peers"),
        basis="the host's own counters in the very steps in which its ranks are late; "
        f"{matched_note(facts)}{absent_note(members[0])}",
        impact=facts.impact(cost),
        cap=Severity.CRITICAL if members[0].is_sure else Severity.MINOR,
        keys=keys,
        against=cost.against,
        **advice,
    )


def lower(phrase: str) -> str:
    """A phrase that stands within a sentence."""
    return phrase[:1].lower() + phrase[1:]


# --- stretches of the history ---------------------------------------------------------------------


def _of_history(
    facts: Facts,
    limits: HostThresholds,
    lacks: Sequence[Lack],
    groups: Mapping[str, frozenset[str | None]],
    advice: Advice,
) -> list[Finding]:
    """One finding a host: the stretches of the log in which it lacked something, as at no other
    time and on no other host."""
    by_name = {lack.resource: lack for lack in lacks}
    members = set(facts.job.hosts.values()) | set(facts.job.placed_hosts.values())
    episodes: dict[tuple[str, str], list[tuple[Row, float, float]]] = defaultdict(list)
    for row in facts.of(EPISODES):
        host = machine(facts, row)
        if host is None or row["resource"] not in by_name or (members and host not in members):
            continue
        if row["cgroup"] not in groups.get(host, ()) or _is_little_known(row, limits):
            continue
        beyond = float(row["some_ratio"]) - max(
            float(row["usual_worst_ratio"]), _elsewhere_then(facts, row, groups, members)
        )
        needed = min(1.0, float(row["lost_ns"] or 0) / (row["end_ns"] - row["start_ns"]))
        if beyond >= max(limits.min_waited_ratio, limits.min_explained_ratio * needed):
            episodes[host, str(row["resource"])].append((row, beyond, needed))
    best: dict[str, tuple[str, list[tuple[Row, float, float]]]] = {}
    for (host, resource), rows in sorted(episodes.items()):
        if host not in best or _lost_ns(rows) > _lost_ns(best[host][1]):
            best[host] = (resource, rows)
    return [
        _history_finding(facts, limits, host, by_name[resource], rows, advice)
        for host, (resource, rows) in best.items()
    ]


def _is_little_known(row: Row, limits: HostThresholds) -> bool:
    return (
        row["some_ratio"] is None
        or row["usual_worst_ratio"] is None
        or row["covered_ratio"] < limits.min_covered_ratio
        or row["usual_covered_ns"] < row["end_ns"] - row["start_ns"]
    )


def _elsewhere_then(
    facts: Facts,
    row: Row,
    groups: Mapping[str, frozenset[str | None]],
    members: Collection[str],
) -> float:
    """The same share of the typical other host in the same stretch; 0 where none is known."""
    key = ("kind", "first_step", "last_step", "resource")
    shares: dict[str, float] = {}
    for other in facts.of(EPISODES):
        host = machine(facts, other)
        if host is None or host == machine(facts, row) or (members and host not in members):
            continue
        is_same = all(other[k] == row[k] for k in key) and other["some_ratio"] is not None
        if is_same and other["cgroup"] in groups.get(host, ()):
            shares[host] = max(shares.get(host, 0.0), float(other["some_ratio"]))
    return median(shares.values()) if shares else 0.0


def lost_in(stretches: Iterable[Row]) -> int:
    """What distinct stretches lose, in ns: one may show in several control groups or devices."""
    return sum({(r["kind"], r["first_step"]): int(r["lost_ns"] or 0) for r in stretches}.values())


def _lost_ns(rows: Iterable[tuple[Row, float, float]]) -> int:
    return lost_in(row for row, _, _ in rows)


def _history_finding(
    facts: Facts,
    limits: HostThresholds,
    host: str,
    lack: Lack,
    rows: Sequence[tuple[Row, float, float]],
    advice: Advice,
) -> Finding:
    row, beyond, needed = max(rows, key=lambda r: (int(r[0]["lost_ns"] or 0), r[1]))
    group = f", control group {safe(row['cgroup'])}," if row["cgroup"] else ""
    finding = facts.finding(
        Scope(hosts=(host,) if row["host"] is not None else ()),
        f"{loses(facts, [r for r, _, _ in rows])}, and tasks of {safe(host)}{group} "
        f"{lack.words} for {share(float(row['some_ratio']))} of {lack.of}, at other times "
        f"{share(float(row['usual_ratio']))}.",
        (
            Evidence.ratio(
                f"tasks {lack.words}, share of {lack.of} in the stretch, beyond any other as "
                "long and beyond the other hosts",
                beyond,
                max(limits.min_waited_ratio, limits.min_explained_ratio * needed),
                EPISODES,
                facts.readings([r for r, _, _ in rows]),
            ),
            Evidence.ratio("lost in the stretch, of its time", needed, None, EPISODES),
        ),
        by=("counters", "log"),
        basis="the host's counters and the training log agree in time; no trace shows whose ranks "
        "were late",
        impact=price_of(facts, [r for r, _, _ in rows]),
        least=matters(facts, [r for r, _, _ in rows]),
        place=place_of(host),
        keys=(),
        **advice,
    )
    return replace(finding, when=when(facts, [r for r, _, _ in rows]))


def _log(facts: Facts) -> Log:
    return Log(facts.of(SUMMARY_QUERY)[0], ())


def _share_of_job(facts: Facts, lost_ns: int) -> float:
    return _log(facts).share(lost_ns)


def price_of(facts: Facts, stretches: Sequence[Row]) -> Impact:
    """What these stretches cost the job, where no trace has steps."""
    return logged.price_of(facts, _log(facts), lost_in(stretches))


def loses(facts: Facts, stretches: Sequence[Row]) -> str:
    """``In steps 120 to 180 of the log the job loses 12 min (1.5 % of its time)``."""
    lost_ns = lost_in(stretches)
    steps = dict.fromkeys((row["first_step"], row["last_step"]) for row in stretches)
    said = some([f"{a:,} to {b:,}" if a != b else f"{a:,}" for a, b in steps], 3)
    of_job = share(_share_of_job(facts, lost_ns))
    return f"In steps {said} of the log the job loses {span(lost_ns / 1e9)} ({of_job} of its time)"


def matters(facts: Facts, stretches: Sequence[Row]) -> Severity:
    """How much it matters what these stretches lose of the job."""
    return severity_of(_share_of_job(facts, lost_in(stretches)))


def when(facts: Facts, stretches: Sequence[Row]) -> When:
    """From the first stretch to the end of the last, where the log says in which zone."""
    if not _log(facts).summary["is_epoch"]:
        return When()
    return When(
        start_utc=utc(min(row["start_ns"] for row in stretches)),
        end_utc=utc(max(row["end_ns"] for row in stretches)),
    )


def place_of(machine_name: str) -> str:
    """What tells a machine in an id: its host, else its file."""
    return machine_name.removeprefix("the machine of ")

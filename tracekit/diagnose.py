"""From an open run to a report: which queries to run, and what the tables say of the job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from tracekit.errors import QueryError
from tracekit.port_traffic import across_ports, says_layout
from tracekit.report.build import build_report
from tracekit.report.config import DiagnoseConfig
from tracekit.report.model import InputFile, InputIssue, Report
from tracekit.rules import RULES, Facts, JobFacts, Rule, configured
from tracekit.rules.facts import STEPS_QUERY, Replay
from tracekit.rules.thresholds import KernelThresholds
from tracekit.rules.windows import OVER, WINDOWS
from tracekit.wording import natural

if TYPE_CHECKING:
    from tracekit.answers import Answers
    from tracekit.job import JobDescription
    from tracekit.kept import Rows
    from tracekit.query_file import Query

LONG_SILENCE_NS = 10**9
"""What is asked "after silence" is asked only where no rank communicates at the end of its capture
for so long: no limit of silence in the rules is that short."""
MIN_LATE_RATIO = 0.01
"""What is asked "where late" is asked only where a rank delays others, or takes longer than its
peers, by this share of its time or more: no finding costs less."""
MIN_SLOW_RATIO = 0.05
"""What is asked "where slow" is asked only where a steady step is this much longer than the median
one: the least that slow_steps calls slow."""

MIN_IDLE_RATIO = 0.2
"""What is asked "where idle" is asked only where ranks without a GPU are idle for this share of
their steps: of less nothing is said."""


def diagnosed(
    answers: Answers,
    job: JobFacts | None = None,
    inputs: Sequence[InputFile] | None = None,
    config: DiagnoseConfig | None = None,
    filled: Collection[str] | None = None,
    description: JobDescription | None = None,
) -> tuple[Facts, Report]:
    """The report of the run that is asked, and the facts that it was made of.

    ``job`` and ``inputs`` default to what the run's own tables say; give ``job`` to add what a
    job.toml knows (``msgspec.structs.replace(job_facts(answers), world_size=64)``). Rows of other
    attempts than ``job.attempt`` are left out. ``filled`` names the tables that have rows, so that
    queries which can find nothing are not planned; None: ask them all. ``description`` is what the
    user says of the job.
    """
    job = job if job is not None else job_facts(answers)
    inputs = inputs if inputs is not None else input_files(answers)
    config = config or DiagnoseConfig()
    rules = configured(select=config.select, ignore=config.ignore)
    facts = gather(answers, job, filled, description, rules, config.report)
    report = build_report(facts, inputs, config)
    answers.save()
    return facts, report


def gather(
    answers: Answers,
    job: JobFacts,
    filled: Collection[str] | None = None,
    description: JobDescription | None = None,
    rules: Sequence[Rule] | None = None,
    limits: KernelThresholds | None = None,
) -> Facts:
    """Run every query that these rules (None: all) and the report read, for the job's attempt.

    A query that fails is recorded as unavailable: its rules then say that they did not check.
    """
    from tracekit import catalog, traffic

    read = {q for r in (RULES if rules is None else rules) for q in r.reads}
    queries = [q for q in catalog.queries() if q.is_for_report or q.name in read]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    unavailable: dict[str, str] = {}
    asked: list[Query] = []
    filled = None if filled is None else answers.with_domains(filled)
    for query in queries:
        if filled is not None and catalog.finds_nothing(query, filled):
            rows[query.name] = []
        else:
            asked.append(query)

    def take(
        answered: Iterable[tuple[str, Rows | QueryError]], into: dict[str, list[Mapping[str, Any]]]
    ) -> None:
        for name, answer in answered:
            if isinstance(answer, QueryError):
                unavailable[name] = answer.message.splitlines()[0]
            else:
                into[name] = [r for r in answer if r.get("attempt") in (None, job.attempt)]

    # What another query's answer can spare comes last.
    first = [q.name for q in asked if q.asked in ("", "report")]
    with answers.sharing(first):
        take(answers.each(first), rows)
        gated = [q for q in asked if q.name not in first]
        spared = [q for q in gated if _is_spared(q, rows, unavailable, description)]
        rows |= {q.name: [] for q in spared}
        rest = [q.name for q in gated if q not in spared]
        with answers.sharing(rest):
            take(answers.each(rest), rows)
    halves: dict[str, list[Mapping[str, Any]]] = {}
    if _has_windows_alone(rows, filled):
        over = [q.name for q in asked if any(p.name == OVER for p in q.params)]
        take(answers.each(over, {OVER: WINDOWS}), halves)
    rows["traffic"] = list(traffic.beside(rows.get("traffic", ()), description))
    rows["port_traffic"] = list(across_ports(rows.get("port_traffic", ()), description))
    paths = answers.rows("job_sources")
    if any(r["status"] == "partial" for r in paths):
        job = replace(job, broken_ranks=_broken(answers, job.attempt))
    return Facts(
        job=job,
        rows=rows,
        halves=halves,
        unavailable=unavailable,
        sources={int(r["source_id"]): str(r["path"]) for r in paths},
        description=description,
        kernel_limits=limits or KernelThresholds(),
        replay=cast("Replay", _LaterReplay(answers)),
    ).without_lost({q.name for q in queries if q.is_of_device})


class _LaterReplay:
    """A replay of ranks, made when a rule first asks what is not kept: most jobs need no price.

    It has what ``Replay`` has, and asks it of the replay itself.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    @cached_property
    def _loaded(self) -> Replay:
        from tracekit.replays import NAMED, RankReplay

        return RankReplay(self._answers.con_naming(NAMED))

    def __getattr__(self, name: str) -> Any:
        if isinstance(getattr(Replay, name), property):
            return self._figure(name, lambda: getattr(self._loaded, name))

        def asked(*given: Any) -> Any:
            # The same ranks in another order are the same question.
            words = (str(sorted(g) if isinstance(g, Collection) else g) for g in given)
            label = " ".join((name, *words))
            return self._figure(label, lambda: getattr(self._loaded, name)(*given))

        return asked

    def _figure(self, label: str, ask: Callable[[], float | bool | None]) -> Any:
        if label.startswith("is_"):
            return self._answers.figure(f"replay {label}", "BOOLEAN", ask)

        def price() -> float | None:
            figure = ask()
            return None if figure is None else float(figure)

        return self._answers.figure(f"replay {label}", "DOUBLE", price)


def _broken(answers: Answers, attempt: int) -> frozenset[int]:
    """Ranks of an attempt with a file that was not read whole."""
    rows = answers.rows("coverage")
    return frozenset(
        int(r["rank"]) for r in rows if r["attempt"] == attempt and r["status"] == "partial"
    )


def _has_windows_alone(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], filled: Collection[str] | None
) -> bool:
    """Whether devices worked and nothing marks steps."""
    has_work = filled is None or "gpu_op" in filled
    return has_work and STEPS_QUERY in rows and not rows[STEPS_QUERY]


def _is_spared(
    query: Query,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    unavailable: Collection[str],
    description: JobDescription | None,
) -> bool:
    """Whether other answers show that a query would find nothing of use; a failure shows
    nothing."""
    if query.asked == "report where a layout is told":
        return not says_layout(description)
    if not {"comm_summary", "last_calls"}.isdisjoint(unavailable):
        return False
    if query.asked == "where late":
        return "straggler" not in unavailable and not _may_be_late(rows)
    if query.asked == "report where slow":
        return not _has_slow_steps(rows)
    if query.asked == "report where idle":
        return not _is_idle(rows)
    if query.asked == "report where nobody communicates":
        return bool(rows.get("comm_summary"))
    operations = {row["op"] for row in rows.get("comm_summary", ())}
    if query.asked.startswith("with "):
        return operations.isdisjoint(query.asked.removeprefix("with ").split(" or "))
    # Calls that could not be matched are not among the last ones: then silence is not known.
    silences = [row["silence_ns"] or 0 for row in rows.get("last_calls", ())]
    return not operations or min(silences, default=LONG_SILENCE_NS) < LONG_SILENCE_NS


def _may_be_late(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    """Whether any rank delays others, or takes longer than its peers, by as much as matters; or a
    stage of a pipeline longer than the others."""
    lasted: dict[int, int] = {}
    for row in rows.get("step_breakdown", ()):
        lasted[row["rank"]] = lasted.get(row["rank"], 0) + int(row["dur_ns"])
    return any(
        int(row["exposed_gap_ns"] or 0) >= MIN_LATE_RATIO * lasted.get(row["rank"], 0)
        or (row["peer_ratio"] or 1.0) >= 1 + MIN_LATE_RATIO
        for row in rows.get("straggler", ())
    ) or any(
        (row["compute_ratio"] or 1.0) >= 1 + MIN_LATE_RATIO for row in rows.get("stage_balance", ())
    )


def _is_idle(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    """Whether the ranks have no GPU and do nothing for a good part of their steps."""
    steps = rows.get("step_breakdown", ())
    if any(row["measured_on"] == "gpu" for row in steps):
        return False
    idle_ns = sum(int(row["idle_ns"] or 0) for row in steps)
    return idle_ns > MIN_IDLE_RATIO * sum(int(row["dur_ns"] or 0) for row in steps)


def _has_slow_steps(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    """Whether any steady step is longer than the median one by as much as is called slow."""
    longest: dict[tuple[int, int], int] = {}
    for row in rows.get("step_breakdown", ()):
        if not row["is_warmup"] and not row["is_partial"]:
            key = (row["capture_id"], row["step"])
            longest[key] = max(longest.get(key, 0), int(row["dur_ns"]))
    return bool(longest) and max(longest.values()) > (1 + MIN_SLOW_RATIO) * median(longest.values())


def job_facts(answers: Answers, attempt: int | None = None) -> JobFacts:
    """What the run's own tables say of the job: the given attempt, or the latest."""
    attempts = answers.rows("job_attempts")
    ranks = answers.rows("job_ranks")
    if attempt is None:
        attempt = max((int(r["attempt"]) for r in (*attempts, *ranks)), default=1)
    stated = next((r for r in attempts if r["attempt"] == attempt), None)
    of_attempt = [r for r in ranks if r["attempt"] == attempt]
    facts = JobFacts(
        attempt=attempt,
        hosts={int(r["rank"]): str(r["host"]) for r in of_attempt if r["host"] is not None},
        rank_sources={int(r["rank"]): str(r["rank_source"] or "assigned") for r in of_attempt},
        rank_files={int(r["rank"]): str(r["path"]) for r in of_attempt if r["path"] is not None},
        is_epoch=bool(of_attempt) and all(r["is_epoch"] for r in of_attempt),
    )
    if stated is None:
        return facts
    return replace(
        facts,
        name=stated["job_name"],
        world_size=stated["world_size"],
        start_ns=stated["start_ns"],
        end_ns=stated["end_ns"],
    )


def input_files(answers: Answers) -> tuple[InputFile, ...]:
    """Every file that was given, with what was skipped or repaired in it; rank2 before rank10."""
    issues: dict[int, list[InputIssue]] = {}
    for row in answers.rows("input_issues"):
        issues.setdefault(int(row["source_id"]), []).append(
            InputIssue(
                name=str(row["counter"]),
                severity=row["severity"],
                count=int(row["occurrences_count"]),
                place=row["place"],
            )
        )
    files = (
        InputFile(
            path=str(row["path"]),
            kind=str(row["kind"] or "unknown"),
            status=row["status"],
            rows=int(row["rows_count"] or 0),
            issues=tuple(issues.get(int(row["source_id"]), ())),
            reason=row["reason"],
        )
        for row in answers.rows("job_sources")
    )
    return tuple(sorted(files, key=lambda file: natural(file.path)))

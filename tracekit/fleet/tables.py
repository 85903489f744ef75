"""The fleet's tables, declared once as data: what a night keeps of every run."""

from __future__ import annotations

from tracekit.schema import Column, Table

SCHEMA_VERSION = 6
"""Raised when rows of a run would come out otherwise; part of what the ledger compares."""


def _c(name: str, type_: str, doc: str) -> Column:
    return Column(name, type_, doc)


_DATE = _c("date", "VARCHAR", "UTC date on which the job ran; the table's partition.")
_RUN = _c("run", "VARCHAR", "Name of the run in the lake.")
_COST = (
    _c("gpu_hours_per_day", "DOUBLE", "What it loses in a day while it lasts; null: not priced."),
)
_SEVERITY = _c("severity", "VARCHAR", "The gravest of these; null: no finding, or an older row.")


def _table(name: str, doc: str, grain: tuple[str, ...], *columns: Column) -> Table:
    return Table(name, "derived", doc, ("date", "run", *grain), (_DATE, _RUN, *columns))


TABLES = (
    _table(
        "job",
        "What a run was, how long its steps took, and its verdict.",
        (),
        _c("family", "VARCHAR", "Runs that may be compared; null where nothing says what ran."),
        _c("job_name", "VARCHAR", "Job name; null when unknown."),
        _c("start_utc", "VARCHAR", "Start of what was recorded, ISO 8601; null without a clock."),
        _c("signature", "VARCHAR", "As in the run's table."),
        _c("model", "VARCHAR", "Model as the job description states it."),
        _c("layout", "VARCHAR", "Layout as the job description states it."),
        _c("world_size", "INTEGER", "Ranks of the job; null when unknown."),
        _c("ranks_count", "INTEGER", "Ranks with a trace."),
        _c("hosts", "VARCHAR[]", "Hosts that had a part, sorted."),
        _c("gpu_model", "VARCHAR", "GPU model when all ranks agree."),
        _c("framework", "VARCHAR", "Training framework."),
        _c("torch_version", "VARCHAR", "PyTorch."),
        _c("cuda_version", "VARCHAR", "CUDA or ROCm."),
        _c("nccl_version", "VARCHAR", "NCCL or RCCL."),
        _c("driver_version", "VARCHAR", "GPU driver."),
        _c("steps_count", "BIGINT", "Steady steps; 0 where nothing marks steps."),
        _c("step_mean_s", "DOUBLE", "Mean steady step."),
        _c(
            "place_cost_s",
            "DOUBLE",
            "What findings of machines and links cost of it; null: unpriced.",
        ),
        _c("overlap_ratio", "DOUBLE", "Communication hidden by computation."),
        _c("window_s", "DOUBLE", "How long was recorded."),
        _c("verdict", "VARCHAR", "Kind of the verdict."),
        _c("verdict_rule", "VARCHAR", "Rule of the finding that carries it; null for none."),
        _c("sentence", "VARCHAR", "The verdict in a sentence."),
        _c("inputs_count", "INTEGER", "Files that were given."),
        _c("inputs_bad_count", "INTEGER", "Of these partial, empty or unreadable."),
        _c("rules_unchecked_count", "INTEGER", "Rules that lacked what they need."),
    ),
    _table(
        "step",
        "Durations of the steady steps: of the job, and of each rank.",
        ("rank",),
        _c("rank", "INTEGER", "Global rank; null for the job."),
        _c("steps_count", "BIGINT", "Steps that count."),
        _c("mean_s", "DOUBLE", "Mean."),
        _c("p50_s", "DOUBLE", "Median."),
        _c("p95_s", "DOUBLE", "95th percentile."),
        _c("p99_s", "DOUBLE", "99th percentile; null under 20 steps."),
        _c("max_s", "DOUBLE", "Longest."),
    ),
    _table(
        "rank",
        "Where a rank ran, and by how much others waited for it.",
        ("rank",),
        _c("rank", "INTEGER", "Global rank."),
        _c("host", "VARCHAR", "Its host; null when unknown."),
        _c("device", "VARCHAR", "Its GPU, by UUID or PCI address; null when unknown."),
        _c("lateness_ratio", "DOUBLE", "Its share of all inflicted waiting; null: none matched."),
        _c("compute_ratio", "DOUBLE", "Its computing time over its peers' median."),
    ),
    _table(
        "host",
        "A host's part in a run, and whether a finding lies on it.",
        ("host",),
        _c("host", "VARCHAR", "Canonical host."),
        _c(
            "rack",
            "VARCHAR",
            "Its rack by the job description; else its leaf switch, where it has only one; "
            "null: neither is known.",
        ),
        _c("ranks_count", "INTEGER", "Its ranks with a trace."),
        _c("rules", "VARCHAR[]", "Rules of findings on it alone or nearly so, sorted."),
        _SEVERITY,
        *_COST,
    ),
    _table(
        "gpu",
        "A GPU's part in a run, and whether a finding lies on it.",
        ("gpu",),
        _c("gpu", "VARCHAR", "UUID, PCI address with its host, or as the finding names it."),
        _c("host", "VARCHAR", "Its host; null when unknown."),
        _c("rules", "VARCHAR[]", "Rules of findings on it, sorted."),
        _SEVERITY,
        *_COST,
    ),
    _table(
        "link",
        "A port's part in a run, and whether a finding lies on it.",
        ("link",),
        _c("link", "VARCHAR", "node:port, as findings name it; a host's own by its host."),
        _c("rules", "VARCHAR[]", "Rules of findings on it, sorted."),
        _SEVERITY,
        *_COST,
    ),
    _table(
        "collective",
        "What a rank sends in a step, by kind of group and operation.",
        ("group_kind", "op"),
        _c("group_kind", "VARCHAR", "tp, pp, dp, ...; null when unknown."),
        _c("op", "VARCHAR", "all_reduce, all_gather, ..."),
        _c("calls_per_step", "DOUBLE", "Calls of a rank in a step."),
        _c("bytes_per_step", "DOUBLE", "Bytes that it sends; null where unknowable."),
        _c("expected_bytes", "DOUBLE", "Bytes that the layout needs; null when unknown."),
    ),
    _table(
        "goodput",
        "Where the time of a job went from the first to the last line of its training log.",
        ("part",),
        _c(
            "part",
            "VARCHAR",
            "productive, slow, periodic, stalled, repeated or down, as in the query goodput.",
        ),
        _c("spent_s", "DOUBLE", "Time in it."),
        _c("gpu_hours", "DOUBLE", "All GPUs' hours in it; null: their number is unknown."),
    ),
    _table(
        "finding",
        "What is wrong with a run.",
        ("finding",),
        _c("finding", "VARCHAR", "Its id: rule/scope."),
        _c("rule", "VARCHAR", "Rule."),
        _c("severity", "VARCHAR", "note, minor, major or critical."),
        _c("confidence", "VARCHAR", "possible, likely or certain."),
        _c("owner", "VARCHAR", "Whose it is: network, hardware, framework, model, platform, data."),
        _c("is_verdict", "BOOLEAN", "Whether the verdict rests on it."),
        _c(
            "is_explained", "BOOLEAN", "Whether another finding explains it: then it costs nothing."
        ),
        _c("ranks", "INTEGER[]", "Ranks that it lies on."),
        _c("hosts", "VARCHAR[]", "Hosts."),
        _c("devices", "VARCHAR[]", "GPUs."),
        _c("links", "VARCHAR[]", "Ports."),
        _c("s_per_step", "DOUBLE", "What a step would take less without it; null: not priced."),
        *_COST,
        _c("summary", "VARCHAR", "One sentence."),
    ),
    _table(
        "budget",
        "How the GPU-hours of a day divide while the job runs so; parts add up to the job's.",
        ("part", "finding"),
        _c("part", "VARCHAR", "floor, finding, other_waiting, bubble, host or unexplained."),
        _c("finding", "VARCHAR", "The finding whose part it is; null for the others."),
        _c("rule", "VARCHAR", "Its rule."),
        *_COST,
        _c(
            "energy_joules_per_day",
            "DOUBLE",
            "The same at the GPUs' median power; null: no power was sampled.",
        ),
        _c(
            "amount_per_day",
            "DOUBLE",
            "The same in money, by the prices of the job's description; null: it states none.",
        ),
        _c("currency", "VARCHAR", "Of the amount; null where the description names none."),
    ),
)

LEDGER = Table(
    "ledger",
    "derived",
    "Which runs the tables hold, of which generation. A run that is begun and not done is done "
    "again; rows of a run that is not done here do not count.",
    ("run",),
    (
        _RUN,
        _c("date", "VARCHAR", "Date of this generation."),
        _c("dates", "VARCHAR[]", "Every date under which rows of it may stand."),
        _c("key", "VARCHAR", "The run's generation."),
        _c(
            "stamp",
            "VARCHAR",
            "What tells without opening the run that it is of this generation; null: its key does.",
        ),
        _c("schema_version", "INTEGER", "SCHEMA_VERSION of its rows."),
        _c("tracekit_version", "VARCHAR", "What made them."),
        _c("state", "VARCHAR", "begun, done or failed."),
        _c("reason", "VARCHAR", "Why it failed."),
        _c("at_utc", "VARCHAR", "When."),
    ),
)


def table(name: str) -> Table:
    """The table of that name; KeyError if there is none."""
    return {t.name: t for t in TABLES}[name]

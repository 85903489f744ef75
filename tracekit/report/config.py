"""What a user may change about a diagnosis: thresholds, which rules run, what is silenced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any

from msgspec import Struct, field

from tracekit.errors import UsageError
from tracekit.findings import Finding
from tracekit.report.judgement import ReportThresholds


class Silence(Struct, frozen=True):
    """Findings of a rule that are known and not to be reported until a day.

    Without ranks and hosts it silences the rule everywhere.
    """

    rule: str
    reason: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    until: date | None = None

    def covers(self, finding: Finding, today: date) -> bool:
        """Whether the whole scope of the finding is silenced today."""
        if finding.rule != self.rule or (self.until is not None and today > self.until):
            return False
        if self.ranks and not (finding.scope.ranks and set(finding.scope.ranks) <= set(self.ranks)):
            return False
        return not self.hosts or (
            bool(finding.scope.hosts) and set(finding.scope.hosts) <= set(self.hosts)
        )


class DiagnoseConfig(Struct, frozen=True):
    """Options of ``diagnose``; the defaults change nothing."""

    thresholds: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    silences: tuple[Silence, ...] = ()
    report: ReportThresholds = field(default_factory=ReportThresholds)

    @classmethod
    def from_mapping(
        cls,
        data: Mapping[str, Any],
        select: Iterable[str] = (),
        ignore: Iterable[str] = (),
    ) -> DiagnoseConfig:
        """From tracekit.toml: thresholds in ``[rules.<name>]`` and ``[report]``, ``[[silence]]``.

        UsageError for anything that it does not know.
        """
        unknown = set(data) - {"rules", "report", "silence"}
        if unknown:
            raise UsageError(
                f"the configuration has no section {', '.join(sorted(unknown))}",
                hint="sections: [rules.<name>], [report], [[silence]]",
            )
        rules = data.get("rules", {})
        if not isinstance(rules, dict) or not all(isinstance(v, dict) for v in rules.values()):
            raise UsageError("[rules] must hold one table a rule, such as [rules.gc-pause]")
        silences = data.get("silence", [])
        if not isinstance(silences, list):
            raise UsageError("silence must be a list of tables: [[silence]]")
        report = data.get("report", {})
        if not isinstance(report, dict):
            raise UsageError("[report] must hold thresholds, such as min_idle_ratio = 0.3")
        return cls(
            rules,
            tuple(select),
            tuple(ignore),
            tuple(_silence(s) for s in silences),
            ReportThresholds().replaced("[report]", report),
        )


def _silence(entry: object) -> Silence:
    if not isinstance(entry, dict) or not set(entry) <= {
        "rule",
        "reason",
        "ranks",
        "hosts",
        "until",
    }:
        raise UsageError("a [[silence]] has rule, reason, ranks, hosts, until and nothing else")
    rule, reason = entry.get("rule"), entry.get("reason")
    if not isinstance(rule, str) or not isinstance(reason, str) or not reason.strip():
        raise UsageError("a [[silence]] needs a rule and a reason")
    until = entry.get("until")
    if isinstance(until, datetime):
        until = until.date()
    if until is not None and not isinstance(until, date):
        raise UsageError("until of a [[silence]] must be a date, such as 2026-12-31")
    ranks, hosts = entry.get("ranks", []), entry.get("hosts", [])
    is_int = isinstance(ranks, list) and all(type(r) is int for r in ranks)
    is_text = isinstance(hosts, list) and all(isinstance(h, str) for h in hosts)
    if not (is_int and is_text):
        raise UsageError("ranks of a [[silence]] are whole numbers, hosts are names")
    return Silence(rule, reason, tuple(ranks), tuple(hosts), until)

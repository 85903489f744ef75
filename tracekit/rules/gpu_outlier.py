"""
What it means
    A GPU is unlike its peers in temperature or power, and nothing says that it is at fault.

How it shows
    In nine of ten moments it is the highest of all GPUs of its model (of unknown model: of its
    machine) that work as it does, with a temperature 10 degrees or a power 5 % above the others'
    median; for one of both its distance is 3.5 times their spread.

Why it hurts
    It may not: it is where to look first when something does go wrong, and what may fail next.

Remedy
    Look at its place in the chassis, its fan and its load when there is time.

When this is wrong
    Positions in a chassis differ in airflow. More work makes a GPU hotter. It is always a note.

Source
    A machine is compared with its peers at the same time; a recorded run of 8 GPUs whose GPU 1 ran
    at 63 degrees beside 39 to 48.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tracekit.findings import Evidence, Finding, Severity
from tracekit.rules import gpus
from tracekit.rules.base import Facts, Row, RuleOutcome
from tracekit.rules.thresholds import Thresholds, threshold
from tracekit.wording import listed

UNITS = {"gpu_temperature": "celsius", "memory_temperature": "celsius", "power": "watts"}
WORDS = {"gpu_temperature": "temperature", "memory_temperature": "memory", "power": "power"}


class GpuOutlierThresholds(Thresholds):
    """When a GPU stands out."""

    min_highest_ratio: float = threshold(0.90, "share of moments in which no other is as high")
    min_above_celsius: float = threshold(10.0, "above the others' median; places differ by less")
    min_power_ratio: float = threshold(0.05, "above the others' median power")
    min_distance_mads: float = threshold(3.5, "modified z-score over the other GPUs")
    min_peers_count: int = threshold(3, "GPUs to have a spread worth the name")
    min_moments_count: int = threshold(3, "moments in a row are no accident")


def evaluate(facts: Facts, limits: GpuOutlierThresholds) -> RuleOutcome:
    """One note a GPU that stands out."""
    rows = [r for r in facts.of(gpus.COUNTERS) if r["counter"] in UNITS]
    if not rows:
        return gpus.lacking_counters(facts, "temperature or power of GPUs (DCGM 140, 150, 155)")
    if not any(r["moments_count"] for r in rows):
        return gpus.lacking_counters(facts, "temperature or power of three GPUs at the same time")
    standing: dict[str, list[Row]] = {}
    for row in rows:
        if _stands_out(row, limits):
            standing.setdefault(str(row["gpu_id"]), []).append(row)
    findings = []
    for _, of_gpu in sorted(standing.items()):
        if any(_distance(row, rows) >= limits.min_distance_mads for row in of_gpu):
            findings.append(_finding(facts, limits, of_gpu, rows))
    return RuleOutcome(tuple(findings))


def _stands_out(row: Row, limits: GpuOutlierThresholds) -> bool:
    if (
        row["peers_count"] < limits.min_peers_count
        or row["moments_count"] < limits.min_moments_count
        or row["highest_ratio"] < limits.min_highest_ratio
    ):
        return False
    if UNITS[row["counter"]] == "celsius":
        return bool(row["p50_value"] - row["peer_value"] >= limits.min_above_celsius)
    return bool(row["peer_ratio"] is not None and row["peer_ratio"] >= 1 + limits.min_power_ratio)


def _distance(row: Row, rows: Sequence[Row]) -> float:
    """Modified z-score of its median among the other GPUs of its group; no spread: infinite."""
    others = [
        float(r["p50_value"])
        for r in rows
        if r["counter"] == row["counter"]
        and r["peer_group"] == row["peer_group"]
        and r["gpu_id"] != row["gpu_id"]
        and r["p50_value"] is not None
    ]
    middle = median(others)
    spread = median(abs(v - middle) for v in others)
    away = float(row["p50_value"]) - middle
    return 0.6745 * away / spread if spread > 0 else float("inf")


def _finding(
    facts: Facts, limits: GpuOutlierThresholds, of_gpu: Sequence[Row], rows: Sequence[Row]
) -> Finding:
    words = [
        f"{WORDS[r['counter']]} {r['p50_value']:.0f} against {r['peer_value']:.0f} "
        f"{'C' if UNITS[r['counter']] == 'celsius' else 'W'}"
        for r in of_gpu
    ]
    return gpus.finding(
        facts,
        of_gpu,
        f"{gpus.subject(of_gpu[:1])} is unlike its peers: {listed(words)}.",
        tuple(
            Evidence(
                f"{WORDS[r['counter']]}, median moment",
                float(r["p50_value"]),
                UNITS[r["counter"]],
                threshold=float(r["peer_value"]) + limits.min_above_celsius
                if UNITS[r["counter"]] == "celsius"
                else float(r["peer_value"]) * (1 + limits.min_power_ratio),
                query=gpus.COUNTERS,
                rows=facts.readings([r]),
            )
            for r in of_gpu
        ),
        basis="its peers at the same moments",
        confirm=("nvidia-smi -q -d TEMPERATURE,POWER   on its host",),
        remedy=("look at its cooling and its place in the chassis when there is time",),
    )


RULE = gpus.rule(
    name="gpu-outlier",
    summary="A GPU is unlike its peers in temperature or power; nothing says that it is at fault.",
    owner="hardware",
    thresholds=GpuOutlierThresholds(),
    queries=("step_breakdown", gpus.COUNTERS),
    evaluate=evaluate,
    cap=Severity.NOTE,
    symptom_of=("odd GPU",),
    same="devices",
)

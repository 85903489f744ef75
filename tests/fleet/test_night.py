"""What nights say of a simulated fleet: each fault on its day or the next, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fleet_nights import (
    BUSY_HOST,
    LINK,
    LINK_DAY,
    LOGGED,
    MISSING_DAY,
    RACK,
    SLOW_DAY,
    SLOW_HOST,
    UPGRADE_DAY,
    Fleet,
    day_of,
)
from tracekit.findings import Severity
from tracekit.fleet import night as night_module
from tracekit.fleet import summary
from tracekit.fleet.limits import Limits
from tracekit.fleet.night import Night, judged, regression_severity
from tracekit.fleet.nights import Price, Told, ToldRegression, keep, told_before
from tracekit.fleet.offenders import Offender, Watch, at_least, offenders, watch
from tracekit.fleet.regressions import regressions, why_not_comparable
from tracekit.fleet.rollup import Rolled

UPGRADE = ("framework", "megatron 2.4", "megatron 2.5")
LOOKED_AT = (8, 11, 12, 13, 15, 17, 18, 19, 20, 21, 24, 25, 26, 30)


@dataclass
class RowStore:
    """Rows of the table ``job`` alone."""

    folder: Path
    jobs: list[dict[str, Any]]

    def rows(self, name: str, since: str, until: str) -> list[dict[str, Any]]:
        """Between two dates, as the store gives them."""
        return [j for j in self.jobs if name == "job" and since <= j["date"] <= until]


def night(fleet: Fleet, day: int, rolled: Rolled | None = None) -> Night:
    return judged(fleet, day_of(day), rolled or Rolled())  # type: ignore[arg-type]  # as the store


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet(1)


@pytest.fixture(scope="module")
def nights(fleet: Fleet) -> dict[int, Night]:
    return {day: night(fleet, day) for day in LOOKED_AT}


@pytest.mark.slow
def test_each_fault_is_found_on_its_day_or_the_next_and_nothing_else_ever(
    nights: dict[int, Night],
) -> None:
    first: dict[object, int] = {}
    for day, one in nights.items():
        for r in one.regressions:
            first.setdefault(r.key, day)
        for o in one.offenders:
            first.setdefault((o.kind, o.name), day)
    assert set(first) == {("host", SLOW_HOST), ("link", LINK), (UPGRADE,)}
    assert first["host", SLOW_HOST] - SLOW_DAY in (0, 1)
    assert first["link", LINK] - LINK_DAY in (0, 1)
    assert first[UPGRADE,] - UPGRADE_DAY in (0, 1)


def test_a_fault_is_dated_and_priced_and_new_once(nights: dict[int, Night]) -> None:
    late = nights[30]
    (host,) = [o for o in late.offenders if o.kind == "host"]
    assert (host.since, host.rules[0]) == (day_of(SLOW_DAY), "slow-host")
    (link,) = [o for o in late.offenders if o.kind == "link"]
    assert (link.since, link.rules) == (day_of(LINK_DAY), ("packet-loss",))
    (regression,) = late.regressions
    assert regression.date == day_of(UPGRADE_DAY)
    assert regression.slower_ratio == pytest.approx(0.04, abs=0.005)
    assert len(regression.families) >= 14  # one finding, not one a family
    assert regression_severity(regression) is Severity.MINOR
    assert not regression.is_new
    assert not any(o.is_new for o in late.offenders)
    assert late.worst() is None
    found = [d for d in (25, 26) if nights[d].regressions]
    assert nights[found[0]].regressions[0].is_new
    assert nights[found[0]].worst() is Severity.MINOR


def test_a_night_with_half_its_files_says_so_and_accuses_nobody(nights: dict[int, Night]) -> None:
    one = nights[MISSING_DAY]
    assert one.is_short
    assert (one.quality.jobs_count, one.quality.usual_jobs_count) == (20, 40)
    assert "usually 40" in summary.to_text(one, Path("lake"))
    assert not nights[MISSING_DAY + 1].is_short


@pytest.mark.slow
def test_the_healthy_twin_says_nothing() -> None:
    healthy = Fleet(1, faults=frozenset())
    for day in (13, 19, 30):
        one = night(healthy, day)
        assert not one.regressions
        assert not one.offenders


# ---------------------------------------------------------------- regressions, one limit at a time


def job(index: int, step_s: float, **more: Any) -> dict[str, Any]:
    versions = dict.fromkeys(("torch_version", "cuda_version", "nccl_version", "driver_version"))
    return {
        "run": f"r{index:02d}",
        "date": day_of(1 + index),
        "start_utc": None,
        "family": "f",
        "job_name": "llama",
        "hosts": ["a"],
        "world_size": 8,
        "ranks_count": 8,
        "framework": None,
        "step_mean_s": step_s,
        "place_cost_s": 0.0,
        "verdict_rule": None,
        **versions,
        **more,
    }


def series(after_count: int = 4, ratio: float = 1.05, before_count: int = 8) -> list[Any]:
    before = [job(i, 1.0 + 0.002 * (i % 3)) for i in range(before_count)]
    after = [job(before_count + i, 1.002 * ratio) for i in range(after_count)]
    return [*before, *after]


def found(jobs: list[Any]) -> list[Any]:
    return regressions(jobs, Limits(), jobs[-1]["date"])


def test_a_level_is_a_regression() -> None:
    (one,) = found(series())
    assert one.date == day_of(9)
    assert one.slower_ratio == pytest.approx(0.05, abs=0.002)
    assert (one.change, one.is_new) == (None, True)
    assert one.families[0].runs == ("r08", "r09", "r10")


@pytest.mark.parametrize(
    "jobs",
    [
        series(after_count=2),
        series(after_count=3),
        series(before_count=6),
        series(ratio=1.015),
        series(ratio=0.9),
        [*series(), job(12, 1.0), job(13, 1.0), job(14, 1.001)],
        [{**j, "family": None} for j in series()],
        [{**j, "step_mean_s": None} for j in series()],
    ],
    ids=[
        "two runs after",
        "three runs after, of a family that nothing else is known of",
        "six before",
        "under two percent",
        "faster",
        "passed",
        "nothing says what ran",
        "no steps",
    ],
)
def test_what_is_no_regression(jobs: list[Any]) -> None:
    assert not found(jobs)


def test_single_slow_runs_in_a_row_are_no_level_and_more_of_them_are_one() -> None:
    """Of a family that gets slow runs as often as all others of its fleet, three of four."""

    def family(name: str, steps: list[float]) -> list[Any]:
        return [
            {**job(i // 3, step), "run": f"{name}{i:02d}", "family": name, "signature": name}
            for i, step in enumerate(steps)
        ]

    usual = [1.0 + 0.004 * (i % 3) for i in range(24)]
    others = [
        row
        for n in range(15)
        for row in family(f"o{n:02d}", [s * (1.03 if i == n else 1) for i, s in enumerate(usual)])
    ]
    some = [*usual[:20], 1.03, 1.005, 1.03, 1.03]
    assert not found([*others, *family("x", some)])
    (one,) = found([*others, *family("x", [*some, 1.03, 1.03])])
    assert one.families[0].family == "x"
    (one,) = found([*others, *family("x", [*usual[:19], *[1.03] * 5])])
    assert one.families[0].family == "x"


def test_what_a_machine_costs_is_the_machines() -> None:
    jobs = series()
    priced = [{**j, "place_cost_s": 0.05} if j["step_mean_s"] > 1.04 else j for j in jobs]
    unpriced = [{**j, "place_cost_s": None} if j["step_mean_s"] > 1.04 else j for j in jobs]
    assert not found(priced)
    assert not found(unpriced)


def test_runs_with_ranks_missing_are_not_compared() -> None:
    jobs = series()
    assert not found([{**j, "ranks_count": 7} if j["step_mean_s"] > 1.04 else j for j in jobs])


def test_noise_hides_what_is_within_it() -> None:
    wild = [job(i, 1.0 + 0.05 * (i % 3)) for i in range(8)]
    assert not found([*wild, *(job(8 + i, 1.1) for i in range(3))])


def test_families_that_changed_alike_are_one_and_those_that_held_speak_against() -> None:
    def of(name: str, ratio: float) -> list[Any]:
        versions = ["2.4"] * 8 + ["2.5"] * 4
        return [
            {**j, "family": name, "framework": version}
            for j, version in zip(series(ratio=ratio), versions, strict=True)
        ]

    (one,) = found(sorted([*of("a", 1.05), *of("b", 1.06), *of("c", 1.0)], key=lambda j: j["date"]))
    assert one.change == ("framework", "2.4", "2.5")
    assert [f.family for f in one.families] == ["b", "a"]
    assert one.unmoved_count == 1


def test_slow_runs_just_before_a_change_do_not_part_a_family_from_those_that_made_it_too() -> None:
    def of(name: str, slow: Sequence[int], ratio: float = 1.05) -> list[Any]:
        return [
            {
                **job(i, (1.0 + 0.002 * (i % 3)) * (ratio if i >= 12 or i in slow else 1)),
                "family": name,
                "framework": "2.5" if i >= 12 else "2.4",
            }
            for i in range(18)
        ]

    def told(*families: list[Any]) -> list[tuple[Any, str, list[str]]]:
        jobs = sorted((j for of_one in families for j in of_one), key=lambda j: j["date"])
        return [(r.change, r.date, [f.family for f in r.families]) for r in found(jobs)]

    change, others = ("framework", "2.4", "2.5"), [of(name, (3,)) for name in "abcdef"]
    assert told(of("x", (9, 10, 11)), *others) == [(change, day_of(13), [*"abcdefx"])]
    # Who was told before the change keeps its date, and so does who is alone with it.
    alone = (None, day_of(8), ["x"])
    assert told(of("x", (7, 8, 9, 10, 11)), *others) == [(change, day_of(13), [*"abcdef"]), alone]
    assert told(of("x", (7, 8, 9, 10, 11)), *(of(n, (), 1) for n in "abcdef")) == [alone]
    # Where too few runs came after the change, nothing is said of it yet.
    assert told(of("x", (9, 10, 11))[:14], *others) == [(change, day_of(13), [*"abcdef"])]


def test_what_else_began_then_is_named() -> None:
    jobs = [
        {**j, "hosts": ["a", "new"], "verdict_rule": "recompile"} if j["step_mean_s"] > 1.04 else j
        for j in series()
    ]
    (one,) = found(jobs)
    assert one.families[0].new_hosts == ("new",)
    assert one.families[0].new_rules == ("recompile",)


# ---------------------------------------------------------------- new, by what was told before


def test_what_a_night_that_never_ran_would_have_said_is_new_on_the_next(
    fleet: Fleet, nights: dict[int, Night], tmp_path: Path
) -> None:
    """Night 25 never ran: by its rows the upgrade is known on day 26, and nobody was told."""
    folder = str(tmp_path)
    assert told_before(folder, day_of(26)) is None
    keep(folder, day_of(24), summary.to_json(nights[24]))
    told = told_before(folder, day_of(26))
    assert told is not None
    assert ("host", SLOW_HOST) in told.offenders
    late = judged(fleet, day_of(27), Rolled(), told=told)  # type: ignore[arg-type]
    assert not night(fleet, 27).regressions[0].is_new
    assert late.regressions[0].is_new
    assert not any(o.is_new for o in late.offenders)  # night 24 said these
    keep(folder, day_of(27), summary.to_json(late))
    again = judged(fleet, day_of(28), Rolled(), told=told_before(folder, day_of(28)))  # type: ignore[arg-type]
    assert [r.is_new for r in again.regressions] == [False]
    assert told_before(folder, day_of(24)) is None  # of before, and not of the date itself


def test_a_kept_night_that_is_no_longer_whole_is_passed_over(
    nights: dict[int, Night], tmp_path: Path
) -> None:
    keep(str(tmp_path), day_of(24), summary.to_json(nights[24]))
    for text in ("", "{}", "[]", '{"offenders": 3, "regressions": []}'):
        (tmp_path / "nights" / f"{day_of(25)}.json").write_text(text)
        assert told_before(str(tmp_path), day_of(26)) == told_before(str(tmp_path), day_of(25))
    assert told_before(str(tmp_path), day_of(25)) is not None


def test_a_family_that_gets_slower_once_more_is_told_once_more() -> None:
    steps = [1.0] * 10 + [1.04] * 10 + [1.2] * 10
    jobs = [job(i, s * (1 + i % 3 / 1000)) for i, s in enumerate(steps)]
    new = [
        r.date
        for day in range(11, 31)
        for r in regressions(jobs[:day], Limits(), day_of(day))
        if r.is_new
    ]
    assert new == [day_of(11), day_of(21)]


@pytest.mark.parametrize("late_days", [3, 9])  # within and beyond same_cause_days
def test_runs_that_come_in_late_move_a_regressions_date_which_is_said_once(
    late_days: int, tmp_path: Path
) -> None:
    steps = [1.0 + 0.001 * (i % 3) for i in range(10)] + [1.05] * (late_days + 4)
    jobs = [job(i, s, steps_count=9, inputs_bad_count=0) for i, s in enumerate(steps)]
    store = RowStore(tmp_path, [j for i, j in enumerate(jobs) if not 10 <= i < 10 + late_days])
    said: list[tuple[Any, ...]] = []
    for held in (store.jobs, jobs, jobs):
        last = day_of(24 + len(said))
        store.jobs = [*held[:-1], {**held[-1], "date": last}]
        one = judged(store, last, Rolled(), told=told_before(str(tmp_path), last))  # type: ignore[arg-type]
        keep(str(tmp_path), last, summary.to_json(one))
        said.append(one.regressions)
    (first,), (moved,), (standing,) = said
    assert [r.date for (r,) in said] == [day_of(11 + late_days), day_of(11), day_of(11)]
    assert [r.is_new for r in (first, moved, standing)] == [True, False, False]
    assert [r.told_date for r in (first, moved, standing)] == [None, first.date, None]
    words = f"The last night said since {first.date}: runs since then moved it."
    assert summary._regression(moved).endswith(words)
    assert "last night said" not in summary._regression(standing)


def test_what_got_slower_once_more_is_new_beside_what_was_told() -> None:
    told = Told(frozenset(), (ToldRegression(None, frozenset({"f"}), day_of(1)),))
    (one,) = found(series())
    assert one.date == day_of(9)  # eight days later: beyond same_cause_days
    assert told.marked(one, Limits()) == replace(one, is_new=True)
    near = Told(frozenset(), (ToldRegression(None, frozenset({"f"}), day_of(2)),))
    assert near.marked(one, Limits()) == replace(one, is_new=False, told_date=day_of(2))


# ---------------------------------------------------------------- offenders


def places(bad: dict[str, int], count: int = 20, names: int = 30) -> dict[str, list[Any]]:
    rows = []
    for name in (f"h{i}" for i in range(names)):
        for i in range(count):
            rules = ["slow-host"] if i >= count - bad.get(name, 0) else []
            day = 1 + i * 10 // count
            row = {"host": name, "run": f"r{name}-{i:03d}", "date": day_of(day), "rules": rules}
            rows.append({**row, "gpu_hours_per_day": None})
    return {"host": rows}


def offending(
    rows: dict[str, list[Any]], day: int = 10, families: dict[str, str | None] | None = None
) -> list[Offender]:
    return offenders(rows, families or {}, Limits(), day_of(day))


def named(rows: dict[str, list[Any]]) -> list[str]:
    return [o.name for o in offending(rows)]


def test_who_is_bad_far_more_often_than_others_is_an_offender() -> None:
    assert named(places({"h3": 6})) == ["h3"]
    assert named(places({"h3": 1})) == []
    assert named(places({f"h{i}": 6 for i in range(30)})) == []  # all of them: the fleet's rate


def test_who_is_used_more_is_not_worse() -> None:
    rows = places({f"h{i}": 1 for i in range(20)})
    busy = [
        {"host": BUSY_HOST, "run": f"b{i}", "date": day_of(10), "rules": ["x"] if i < 6 else []}
        for i in range(180)
    ]
    rows["host"] += [{**row, "gpu_hours_per_day": None} for row in busy]
    assert named(rows) == []


def test_who_was_repaired_is_told_no_longer() -> None:
    rows = places({"h3": 6})
    later = [{**r, "date": day_of(12), "run": r["run"] + "x", "rules": []} for r in rows["host"]]
    assert offending({"host": [*rows["host"], *later]}, 13) == []


def test_of_a_host_and_its_port_with_the_same_runs_the_port_is_named() -> None:
    rows = places({"h3": 6})
    links = [{**r, "link": f"leaf:{r['host']}"} for r in rows["host"]]
    (one,) = offending({**rows, "link": links})
    assert (one.kind, one.name) == ("link", "leaf:h3")


def test_the_chance_is_the_binomial_one() -> None:
    assert at_least(0, [0.1] * 5) == 1
    assert at_least(1, [0.1]) == pytest.approx(0.1)
    assert at_least(2, [0.5] * 3) == pytest.approx(0.5)
    assert at_least(3, [0.5] * 3) == pytest.approx(0.125)
    assert at_least(2, [1.0] * 3) == 1
    for bad in range(1, 13):
        binomial = sum(math.comb(12, k) * 0.004**k * 0.996 ** (12 - k) for k in range(bad, 13))
        assert at_least(bad, [0.004] * 12) == pytest.approx(binomial)


def test_the_chance_of_unequal_cases_is_that_of_all_their_outcomes() -> None:
    chances = [0.1, 0.35, 0.02, 0.6]
    for bad in range(len(chances) + 1):
        ways = [
            math.prod(c if hit else 1 - c for c, hit in zip(chances, hits, strict=True))
            for hits in product([False, True], repeat=len(chances))
            if sum(hits) >= bad
        ]
        assert at_least(bad, chances) == pytest.approx(sum(ways))


def once_each() -> list[Any]:
    """Hosts of which each was bad in one run of 140, a while ago; h3 has not run since day 9."""
    rows = places({}, count=140)["host"]
    noisy = [{**r, "rules": ["slow-host"] * r["run"].endswith("-070")} for r in rows]
    return [r for r in noisy if r["host"] != "h3" or r["date"] < day_of(9)]


def one_night(bad: int, clean: int = 0, host: str = "h3", day: int = 10) -> list[Any]:
    """Runs of a host on one night."""
    return [
        {"host": host, "run": f"x{day}-{i}", "date": day_of(day), "gpu_hours_per_day": None,
         "rules": ["slow-host"] if i < bad else []}
        for i in range(bad + clean)
    ]  # fmt: skip


def test_what_broke_last_night_is_told_by_two_bad_runs_of_two() -> None:
    fresh = once_each()
    assert [o.name for o in offending({"host": [*fresh, *one_night(2)]})] == ["h3"]
    assert not offending({"host": [*fresh, *one_night(1)]})
    assert not offending({"host": [*fresh, *one_night(2, clean=40)]})


def test_each_night_asks_anew_so_two_nights_must_be_unlike_all_such_of_four_weeks() -> None:
    """Of these two nights one run of 840 is bad, or one of 105: then one of thirty hosts has two of
    two by chance every few weeks."""
    restless = [
        {**r, "rules": r["rules"] or ["slow-host"] * (r["run"].endswith("-139"))}
        if r["host"] in {f"h{i}" for i in range(10, 18)}
        else r
        for r in once_each()
    ]
    assert [o.name for o in offending({"host": [*once_each(), *one_night(2)]})] == ["h3"]
    assert not offending({"host": [*restless, *one_night(2)]})
    assert [o.name for o in offending({"host": [*restless, *one_night(3)]})] == ["h3"]


def test_who_was_used_for_two_nights_alone_is_judged_as_by_two_nights() -> None:
    new = one_night(2, host="new")
    usual = places({}, count=140)["host"]
    restless = [{**r, "rules": ["slow-host"] * r["run"].endswith(("-070", "-139"))} for r in usual]
    assert not offending({"host": [*restless, *new]})
    assert [o.name for o in offending({"host": [*restless, *one_night(4, host="new")]})] == ["new"]


def graded(rows: list[Any], severity: str) -> list[Any]:
    return [{**r, "severity": severity if r["rules"] else None} for r in rows]


def test_a_place_that_costs_much_more_than_findings_usually_do_is_told_by_two_runs() -> None:
    restless = [
        {**r, "rules": ["slow-host"] * r["run"].endswith(("-070", "-139"))}
        for r in places({}, count=140)["host"]
        if r["host"] != "h3" or r["date"] < day_of(9)
    ]
    grave = graded(one_night(2), "major")
    (one,) = offending({"host": [*graded(restless, "minor"), *grave]})
    assert (one.name, one.is_grave, one.bad_count) == ("h3", True, 2)
    assert "others as gravely" in summary.offender_sentence(one)
    assert not offending({"host": [*graded(restless, "minor"), *graded(one_night(2), "minor")]})
    assert not offending({"host": [*graded(restless, "minor"), *graded(one_night(1), "major")]})
    assert not offending({"host": [*graded(restless, "major"), *grave]})  # as the others'
    assert not offending({"host": [*restless, *one_night(2)]})  # rows of before: nothing is known


def watched(rows: dict[str, list[Any]], day: int = 10) -> Watch:
    return watch(rows, {}, Limits(), day_of(day), offending(rows, day))


def test_a_first_bad_run_is_watched_with_what_would_confirm_it() -> None:
    rows = {"host": [*graded(once_each(), "minor"), *graded(one_night(1), "major")]}
    found = watched(rows)
    own = next(w for w in found.places if w.name == "h3")
    assert (own.severity, own.bad_count, own.rules) == ("major", 1, ("slow-host",))
    tomorrow = graded(one_night(own.more_count, day=11), "major")
    assert [o.name for o in offending({"host": [*rows["host"], *tomorrow]}, 11)] == ["h3"]
    if own.more_count > 1:
        fewer = graded(one_night(own.more_count - 1, day=11), "major")
        assert not offending({"host": [*rows["host"], *fewer]}, 11)
    assert 0 < found.expected_count < 30


def test_who_is_an_offender_or_was_clean_on_the_date_is_not_watched() -> None:
    rows = {"host": [*once_each(), *one_night(3)]}
    assert [o.name for o in offending(rows)] == ["h3"]
    assert "h3" not in {w.name for w in watched(rows).places}
    assert watched({"host": [*once_each(), *one_night(1)]}, 11).places == ()
    restless = places({f"h{i}": 6 for i in range(30)})
    assert watched(restless).places == ()  # as the others are: nothing to wait for


def test_of_a_host_and_its_gpu_with_the_same_bad_run_the_gpu_is_watched() -> None:
    hosts = [*once_each(), *one_night(1)]
    gpus = [{**r, "gpu": f"GPU-{r['host']}"} for r in hosts]
    found = {(w.kind, w.name) for w in watched({"host": hosts, "gpu": gpus}).places}
    assert ("gpu", "GPU-h3") in found
    assert ("host", "h3") not in found


def test_what_befell_another_machine_in_the_runs_of_a_known_offender_is_watched() -> None:
    rows = [*once_each(), *one_night(3)]
    assert [o.name for o in offending({"host": rows})] == ["h3"]
    shared = max(r["run"] for r in rows if r["host"] == "h3" and r["rules"])
    port = {"link": "leaf1:h5", "run": shared, "date": day_of(10), "gpu_hours_per_day": None}

    def found(**row: Any) -> set[tuple[str, str]]:
        (kind,) = {"gpu", "link"} & {*row}
        others = [{**row, kind: f"{row[kind]}-{i}", "rules": []} for i in range(30)]
        return {
            (w.kind, w.name) for w in watched({"host": rows, kind: [row, *others]}).places if w.kind
        } - {("host", r["host"]) for r in rows}

    assert found(**port, rules=["packet-loss"]) == {("link", "leaf1:h5")}
    assert found(**port, rules=["slow-host"]) == set()  # as far as anybody knows, the same thing
    gpu = {**port, "gpu": "GPU-9", "rules": ["slow-host"]}
    del gpu["link"]
    assert found(**gpu, host="h3") == set()
    assert found(**gpu, host="h5") == {("gpu", "GPU-9")}


def test_two_machines_that_fail_in_the_same_runs_are_both_offenders() -> None:
    rows = places({"h3": 6})
    gpus = [{**r, "gpu": f"GPU-{r['host']}", "host": f"x{r['host']}"} for r in rows["host"]]
    assert {o.name for o in offending({**rows, "gpu": gpus})} == {"h3", "GPU-h3"}
    own = [{**r, "gpu": f"GPU-{r['host']}"} for r in rows["host"]]
    assert {o.name for o in offending({**rows, "gpu": own})} == {"GPU-h3"}


def test_chance_findings_of_a_host_do_not_name_it_beside_its_port() -> None:
    def told(chance: int) -> set[str]:
        rows = places({"h3": 6})["host"]
        mine = [r for r in rows if r["host"] == "h3"]
        for row in mine[:chance]:
            row["rules"] = ["packet-loss"]
        links = [{**r, "link": f"leaf:{r['host']}"} for r in rows]
        for row in links:
            if row["host"] == "h3" and row["run"] in {r["run"] for r in mine[:chance]}:
                row["rules"] = []
        return {o.name for o in offending({"host": rows, "link": links})}

    assert told(0) == told(2) == {"leaf:h3"}  # six of eight are the port's: below the share
    assert told(8) == {"leaf:h3", "h3"}  # its other runs alone would make it one


def test_what_a_night_watches_is_told_apart_from_offenders(nights: dict[int, Night]) -> None:
    shown = next(one for one in nights.values() if one.watch.places)
    text = summary.to_text(shown, Path("lake"))
    line = next(line for line in text.splitlines() if line.startswith("WATCH"))
    assert "not yet a repeat offender" in line
    assert "By chance a date like this has" in text
    assert json.loads(summary.to_json(shown))["watch"]["places"]
    assert "- watch: " in summary.to_markdown(shown)


def test_runs_of_one_job_on_one_night_count_once() -> None:
    fresh = once_each()
    night_rows = {"host": [*fresh, *one_night(5)]}
    assert offending(night_rows, families={f"x10-{i}": f"job{i}" for i in range(5)})
    assert not offending(night_rows, families={f"x10-{i}": "job" for i in range(5)})


def test_a_known_offender_hides_no_second_one() -> None:
    fresh = [*once_each(), *one_night(40, host="h9")]
    assert {o.name for o in offending({"host": [*fresh, *one_night(2)]})} == {"h9", "h3"}
    assert {o.name for o in offending({"host": [*fresh, *one_night(1)]})} == {"h9"}
    assert {o.name for o in offending({"host": [*fresh, *one_night(2, clean=40)]})} == {"h9"}


def test_the_hosts_of_a_rack_that_stands_out_hide_no_host_elsewhere() -> None:
    bad = dict.fromkeys([f"h{i}" for i in range(6)], 4)
    alone = offending(racked({**bad, "h20": 4}))
    assert {(o.kind, o.name) for o in alone} == {("rack", "r0"), ("host", "h20")}


def test_where_most_places_are_accused_the_rest_is_no_measure() -> None:
    bad = dict.fromkeys([f"h{i}" for i in range(18)], 20)
    assert set(named(places({**bad, "h20": 3}))) == set(bad)
    few = dict.fromkeys([f"h{i}" for i in range(12)], 20)
    assert set(named(places({**few, "h20": 3}))) == {*few, "h20"}


def racked(bad: dict[str, int]) -> dict[str, list[Any]]:
    """Thirty hosts in racks of six; h0 to h5 are the first."""
    rows = places(bad)["host"]
    return {"host": [{**r, "rack": f"r{int(r['host'][1:]) // 6}"} for r in rows]}


def test_a_rack_stands_out_by_more_than_one_of_its_hosts() -> None:
    (one,) = offending(racked({f"h{i}": 2 for i in range(6)}))
    assert (one.kind, one.name, len(one.hosts)) == ("rack", "r0", 6)
    assert [o.name for o in offending(racked({"h3": 12}))] == ["h3"]  # nobody else there
    spread = racked({f"h{i * 6 + i}": 2 for i in range(5)})  # as many, in all racks
    assert not [o for o in offending(spread) if o.kind == "rack"]
    both = offending(racked({**{f"h{i}": 2 for i in range(6)}, "h3": 12}))
    assert [(o.kind, o.hosts[0]) for o in both] == [("rack", ("h3", 12))]
    assert "h3 12" in summary.offender_sentence(both[0])


def test_a_rack_of_which_every_host_is_bad_now_and_then_is_told_and_no_host_of_it() -> None:
    shaky = Fleet(2, faults=frozenset({"rack"}))
    assert {(o.kind, o.name) for o in night(shaky, 30).offenders} == {("rack", RACK)}


def test_what_logs_say_of_their_time_adds_up(nights: dict[int, Night]) -> None:
    one = nights[30]
    count = sum("goodput" in tables for _, tables in Fleet(1).runs[day_of(30)])
    assert {p.part: p.gpu_hours for p in one.logged} == pytest.approx(
        {part: 80 * count * ratio for part, ratio in LOGGED.items()}
    )
    assert [p.part for p in one.logged] == ["productive", "down", "periodic", "repeated"]
    told = f"LOGGED    {80 * count} GPU-hours by {count} training logs: productive 90 %, down 5.0 %"
    assert told in summary.to_text(one, Path("l"))
    known = {"run": "a", "part": "down", "gpu_hours": 2.0}
    (only,) = night_module.logged([known, {"run": "b", "part": "slow", "gpu_hours": None}])
    assert (only.part, only.gpu_hours, only.runs_count) == ("down", 2.0, 1)


# ---------------------------------------------------------------- in words


def test_a_night_in_words(nights: dict[int, Night]) -> None:
    text = summary.to_text(nights[30], Path("/data/lake"))
    assert len(text.splitlines()) <= 25
    assert text.splitlines()[1] == (
        f"DO        Drain, or mend: host {SLOW_HOST}. Have looked at: port {LINK}. "
        "Look into: framework megatron 2.4 to megatron 2.5."
    )
    assert f"- **do** Drain, or mend: host {SLOW_HOST}" in summary.to_markdown(nights[30])
    assert summary.asks(nights[8]) == ""
    alone = replace(nights[30], offenders=(), regressions=tuple(found(series())))
    assert summary.asks(alone) == "Ask who runs: llama."
    assert "STANDING  " in text
    assert "At that date: framework megatron 2.4 to megatron 2.5." in text
    assert f"Host {SLOW_HOST}: slow-host in" in text
    assert f"Port {LINK}: packet-loss in" in text
    assert "tracekit diagnose /data/lake/runs/" in text
    spaced = summary.to_text(nights[30], Path("/data/my lake"))
    assert "tracekit diagnose '/data/my lake/runs/" in spaced  # as a shell takes it
    said = json.loads(summary.to_json(nights[30]))
    assert (said["schema_version"], said["date"]) == (1, day_of(30))
    assert said["regressions"][0]["severity"] == "minor"


def test_a_date_without_runs_is_not_said_to_be_well() -> None:
    one = night(Fleet(1, days=2, faults=frozenset()), 3)
    for text in (
        summary.to_text(one, Path("l")),
        summary.to_markdown(one),
        *summary.sentences(one),
    ):
        assert "No run of this date is in the tables" in text
        assert "stands out" not in text


def test_what_failed_is_named_and_cannot_write_markup(fleet: Fleet) -> None:
    rolled = Rolled(failed=(("<b>@all</b>\n### x", "http://evil #12 why\x1b[2J"),))
    one = replace(night(fleet, 8, rolled))
    text = summary.to_text(one, Path("l"))
    assert "1 failed" in text
    assert "\x1b" not in text
    marked = summary.to_markdown(one)
    assert "<b>" not in marked
    assert "@all" not in marked
    assert "\n### x" not in marked
    assert "http://evil" not in marked
    assert "#12" not in marked


def test_who_is_compared_with_nobody_is_told_why() -> None:
    fair = job(0, 1.0)
    odd: dict[str, dict[str, Any]] = {
        "nothing marks": {"step_mean_s": None},
        "says what ran": {"family": None},
        "machines or links costs is not known": {"place_cost_s": None},
        "machines or links costs": {"place_cost_s": 1.5},
        "too few of its ranks": {"ranks_count": 7},
    }
    assert why_not_comparable(fair, Limits()) is None
    for words, one in odd.items():
        assert words in (why_not_comparable({**fair, **one}, Limits()) or "")
    half = night(Fleet(1), 26)
    (line,) = [w for w in summary.data_lines(half) if w.startswith("compared with no other run")]
    assert line == (
        "compared with no other run, since what a fault of its machines or links costs is not "
        "known: 1 run (job17-26)"
    )


def test_parts_of_a_step_have_the_names_that_reports_give_them(fleet: Fleet) -> None:
    row = {"run": "a", "part": "host", "rule": None, "gpu_hours_per_day": 9.0, "currency": None}
    row |= {"energy_joules_per_day": None, "amount_per_day": None}
    idle = replace(night(fleet, 8), losses=night_module.losses([row], None), gpu_hours_per_day=48.0)
    assert "LOST      idle: 9 of 48 GPU-hours a day (19 %), 1 run" in summary.to_text(idle, "l")


def test_losses_add_up_over_the_night(nights: dict[int, Night]) -> None:
    one = nights[30]
    assert sum(loss.gpu_hours_per_day for loss in one.losses) < one.gpu_hours_per_day
    assert one.gpu_hours_per_day == pytest.approx(40 * 192)
    assert {loss.cause for loss in one.losses} >= {"slow-host"}


def test_what_is_known_of_some_runs_of_a_cause_is_told_of_these() -> None:
    def part(run: str, hours: float, joules: float | None, *money: object) -> dict[str, object]:
        amount, currency = money or (None, None)
        return {
            "run": run, "part": "finding", "rule": "slow-gpu", "gpu_hours_per_day": hours,
            "energy_joules_per_day": joules, "amount_per_day": amount, "currency": currency,
        }  # fmt: skip

    floor = {**part("a", 40.0, None), "part": "floor", "rule": None}
    rows = [
        floor,
        part("a", 10.0, 3.6e7, 20.0, "EUR"),
        part("a", 5.0, 1.8e7, 10.0, "EUR"),
        part("b", 1.0, None, 9.0, "USD"),
        part("c", 1.0, None),
    ]
    (loss,) = night_module.losses(rows, None)
    assert (loss.gpu_hours_per_day, loss.runs_count) == (17.0, 3)
    assert (loss.energy_joules_per_day, loss.energy_runs_count) == (5.4e7, 1)
    assert (loss.amount_per_day, loss.currency) == (None, None)  # two currencies have no sum
    assert [(a.amount_per_day, a.currency, a.runs_count) for a in loss.amounts] == [
        (30.0, "EUR", 1),
        (9.0, "USD", 1),
    ]
    assert summary.energy_words(loss) == ["15.00 kWh a day (of 1 run)"]
    assert summary.money_words(loss) == [
        "30.00 EUR a day (of 1 run)",
        "9.00 USD a day (of 1 run)",
    ]
    (priced,) = night_module.losses(rows, Price(2.0, "CHF"))
    assert (priced.amount_per_day, priced.currency) == (34.0, "CHF")
    (bare,) = night_module.losses([rows[-1]], None)
    assert (bare.energy_joules_per_day, bare.amounts) == (None, ())
    assert summary.energy_words(bare) + summary.money_words(bare) == []

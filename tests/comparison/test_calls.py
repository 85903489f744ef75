"""What two steps call otherwise, on steps written by hand: the sets are exact, the times add up."""

from __future__ import annotations

import random
import string
from collections import Counter
from typing import Any

import pytest
from called import Made, kernel, op, rows, within

from tracekit.comparison import matching
from tracekit.comparison.calls import called, typical
from tracekit.comparison.matching import MIN_STEPS, matched
from tracekit.comparison.model import Edited, MatchedCalls

STEP_S = 0.001
LAYER = (
    op("linear", op("t"), op("addmm", kernel("gemm", 100))),
    op("relu", kernel("clamp", 20)),
)


def between(
    before: list[dict[str, Any]], after: list[dict[str, Any]], step_s: float = STEP_S
) -> tuple[list[Edited], list[MatchedCalls]]:
    found, sums = matched(
        typical([called(before)], None), typical([called(after)], None), None, step_s
    )
    assert_adds_up(found, sums)
    return found, sums


def assert_adds_up(edited: list[Edited], sums: list[MatchedCalls]) -> None:
    for of in sums:
        kinds = ("kernel",) if of.kind == "kernel" else ("operator", "range")
        told_s = sum(e.candidate_s - e.baseline_s for e in edited if e.kind in kinds)
        same_s = of.same_candidate_s - of.same_baseline_s
        assert told_s + same_s == pytest.approx(of.candidate_s - of.baseline_s, abs=1e-12)


def edits(before: tuple[Made, ...], after: tuple[Made, ...]) -> set[tuple[Any, ...]]:
    """Edit, kind, path, names before and after, and how often."""
    found, _ = between(rows(*before), rows(*after))
    return {(e.edit, e.kind, e.path, e.baseline, e.candidate, e.count) for e in found}


def test_the_same_step_has_no_edits() -> None:
    found, sums = between(rows(*LAYER * 3), rows(*LAYER * 3))
    assert found == []
    assert [(s.kind, s.calls_counts, s.same_count) for s in sums] == [
        ("operator", (12, 12), 12),
        ("kernel", (6, 6), 6),
    ]


def test_a_layer_more_is_its_operators_and_kernels_and_nothing_else() -> None:
    before, after = (within("forward", *LAYER * n) for n in (3, 4))
    assert edits((before,), (after,)) == {
        ("added", "operator", "forward", (), ("linear",), 1),
        ("added", "operator", "forward", (), ("relu",), 1),
        ("added", "kernel", "forward", (), ("gemm",), 1),
        ("added", "kernel", "forward", (), ("clamp",), 1),
    }
    assert {e[0] for e in edits((after,), (before,))} == {"removed"}


def test_a_call_within_an_operator_is_added_at_the_lowest_common_call() -> None:
    cast = op("to", kernel("cast", 7))
    after = (within("forward", op("linear", op("t"), cast, op("addmm", kernel("gemm"))), LAYER[1]),)
    assert edits((within("forward", *LAYER),), after) == {
        ("added", "operator", "forward/linear", (), ("to",), 1),
        ("added", "kernel", "forward/linear", (), ("cast",), 1),
    }


def test_one_for_one_is_renamed_and_its_kernel_stays_the_same() -> None:
    after = (LAYER[0], op("my_relu", kernel("clamp", 20)))
    assert edits(LAYER, after) == {("renamed", "operator", "", ("relu",), ("my_relu",), 1)}


def test_another_kernel_of_the_same_operator_is_renamed() -> None:
    after = (op("linear", op("t"), op("addmm", kernel("gemm_sm90", 60))), LAYER[1])
    found, _ = between(rows(*LAYER), rows(*after))
    assert [(e.edit, e.kind, e.path, e.baseline, e.candidate) for e in found] == [
        ("renamed", "kernel", "linear/addmm", ("gemm",), ("gemm_sm90",))
    ]
    assert (found[0].baseline_s, found[0].candidate_s) == pytest.approx((100e-6, 60e-6))


def test_a_kernel_is_never_renamed_to_communication() -> None:
    """Its time is no operator's either: of both kinds, each is told by itself."""
    before = (*LAYER, op("wait", Made("communication", "ncclDevKernel", 900)))
    after = (*LAYER, op("wait", kernel("copy", 30)))
    assert edits(before, after) == {
        ("removed", "communication", "wait", ("ncclDevKernel",), (), 1),
        ("added", "kernel", "wait", (), ("copy",), 1),
    }


def test_one_for_one_with_other_calls_inside_is_replaced() -> None:
    math = op("math", op("matmul", kernel("gemm")), op("softmax", kernel("soft")))
    flash = op("flash", kernel("flash_fwd"))
    assert edits((op("attention", math),), (op("attention", flash),)) == {
        ("replaced", "operator", "attention", ("math",), ("flash",), 1),
        ("fused", "kernel", "attention", ("gemm", "soft"), ("flash_fwd",), 1),
    }


def test_a_renamed_call_with_the_same_inside_goes_on_being_matched() -> None:
    before = (within("forward", *LAYER, *LAYER),)
    after = (within("fwd", *LAYER, op("relu", kernel("clamp_v2", 20)), *LAYER),)
    assert edits(before, after) == {
        ("renamed", "range", "", ("forward",), ("fwd",), 1),
        ("added", "operator", "forward", (), ("relu",), 1),
        ("added", "kernel", "forward", (), ("clamp_v2",), 1),
    }


@pytest.mark.parametrize(("before", "edit"), [(0, "added"), (1, "removed")])
def test_a_call_around_what_both_sides_have_is_one_call(before: int, edit: str) -> None:
    sides = [(*LAYER, op("loss")), (within("forward", *LAYER), op("loss"))]
    found = edits(sides[before], sides[1 - before])
    assert {e[:3] for e in found} == {(edit, "range", "")}


def test_several_calls_for_fewer_are_fused_and_the_other_way_split() -> None:
    eager = (op("add", kernel("k_add")), op("mul", kernel("k_mul")), op("relu", kernel("k_relu")))
    fused = (op("CompiledFxGraph *", kernel("triton_poi_fused_add_mul_relu_0")),)
    around = op("linear", kernel("gemm"))
    names = ("add", "mul", "relu")
    kernels = ("k_add", "k_mul", "k_relu")
    assert edits((around, *eager, around), (around, *fused, around)) == {
        ("fused", "operator", "", names, ("CompiledFxGraph *",), 1),
        ("fused", "kernel", "", kernels, ("triton_poi_fused_add_mul_relu_0",), 1),
    }
    back = edits((around, *fused, around), (around, *eager, around))
    assert {(e[0], e[4]) for e in back} == {("split", names), ("split", kernels)}


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_took_a_calls_place_stands_against_it_and_not_beside_a_namesake(at: int) -> None:
    """Of layers alike any two could be matched: those are that leave one gap, not two."""
    layers = [op("linear", op("t"), op("addmm", kernel("gemm"))) for _ in range(3)]
    by_hand = [op("t"), op("mm", kernel("gemm")), op("add", kernel("k_add"))]
    after = [*layers[:at], *by_hand, *layers[at + 1 :]]
    calls = {e for e in edits(tuple(layers), tuple(after)) if e[1] == "operator"}
    assert calls == {("split", "operator", "", ("linear",), ("t", "mm", "add"), 1)}
    back = {e for e in edits(tuple(after), tuple(layers)) if e[1] == "operator"}
    assert back == {("fused", "operator", "", ("t", "mm", "add"), ("linear",), 1)}


def test_a_combined_call_stands_for_all_its_siblings_did() -> None:
    """A for-loop's calls lie between others that both sides have; without that they would be
    removed one by one, and the combined call would have replaced the first of them."""
    loop = [call for n in range(3) for call in (op("mul"), op("add"), op(f"item{n}"))]
    kept = [op(f"item{n}") for n in range(3)]
    assert edits((within("update", *loop),), (within("update", op("_foreach_add"), *kept),)) == {
        ("fused", "operator", "update", ("mul", "add"), ("_foreach_add",), 1)
    }


def test_what_is_called_elsewhere_has_moved_with_its_kernels() -> None:
    zero = op("zero_grad", kernel("fill", 5))
    before = (within("forward", *LAYER), within("update", op("step"), zero))
    after = (within("forward", zero, *LAYER), within("update", op("step")))
    assert edits(before, after) == {
        ("moved", "operator", "update", ("zero_grad",), ("zero_grad",), 1),
        ("moved", "kernel", "update", ("fill",), ("fill",), 1),
    }


def test_a_kernel_of_another_operator_elsewhere_has_not_moved() -> None:
    copy = kernel("elementwise", 5)
    before = (within("forward", op("a", copy), *LAYER), within("update", op("step")))
    after = (within("forward", *LAYER), within("update", op("step"), op("b", copy)))
    assert {e[:2] for e in edits(before, after)} == {
        (edit, kind) for edit in ("removed", "added") for kind in ("operator", "kernel")
    }


def slowed(factor: float) -> tuple[Made, ...]:
    return (op("linear", op("addmm", kernel("gemm", int(100 * factor)))), LAYER[1])


def test_the_same_call_that_takes_longer_in_every_step_is_told() -> None:
    found, (_, kernels) = between(
        rows(*slowed(1), steps_count=MIN_STEPS), rows(*slowed(1.5), steps_count=MIN_STEPS)
    )
    assert [(e.edit, e.kind, e.path, e.baseline) for e in found] == [
        ("changed", "kernel", "linear/addmm", ("gemm",))
    ]
    assert found[0].candidate_s - found[0].baseline_s == pytest.approx(50e-6)
    assert (kernels.same_baseline_s, kernels.same_candidate_s) == pytest.approx((20e-6, 20e-6))


@pytest.mark.parametrize(
    ("factor", "steps_count", "step_s"),
    [(1.5, MIN_STEPS - 1, STEP_S), (1.0, MIN_STEPS, STEP_S), (1.5, MIN_STEPS, 0.0051)],
    ids=["too few steps", "no difference", "below a hundredth of the step"],
)
def test_what_may_be_chance_or_is_small_is_told_with_the_rest(
    factor: float, steps_count: int, step_s: float
) -> None:
    sides = [rows(*slowed(f), steps_count=steps_count) for f in (1, factor)]
    assert between(sides[0], sides[1], step_s)[0] == []


def test_times_that_overlap_between_the_sides_are_no_change() -> None:
    mixed = [*rows(*slowed(1)), *rows(*slowed(2))]
    sides = []
    for count in (3, 4):
        steps = [r | {"step": n} for n in range(6) for r in (mixed[:6] if n < count else mixed[6:])]
        sides.append(steps)
    assert len(rows(*slowed(1))) * 2 == len(mixed)
    assert between(sides[0], sides[1])[0] == []


def test_a_step_that_most_do_not_have_is_not_the_typical_one() -> None:
    save = rows(*LAYER, op("save"))
    steps = [r | {"step": n} for n in range(4) for r in (save if n == 2 else rows(*LAYER))]
    side = typical([called(steps)], None)
    assert (len(side.tree.own_ns), side.steps_count) == (3, 4)
    assert "save" not in {label.name for label in side.tree.labels}


def test_rows_of_many_siblings_are_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "MAX_CELLS", 4)
    before = (op("a"), op("b"), op("c"))
    after = (op("c"), op("a"), op("d"), op("b"))
    assert edits(before, after) == {("added", "operator", "", (), ("d",), 1)}


def test_calls_nested_deeper_than_python_recurses() -> None:
    def nested(name: str) -> list[dict[str, Any]]:
        row = rows(op("x"))[0]
        names = [*(f"level{n}" for n in range(3000)), name]
        return [row | {"name": n, "start_ns": i, "end_ns": 9000 - i} for i, n in enumerate(names)]

    found, _ = between(nested("a"), nested("b"))
    assert [(e.edit, e.baseline, e.candidate) for e in found] == [("renamed", ("a",), ("b",))]


# ---------------------------------------------------------------- random pairs


def grown(rng: random.Random, depth: int = 0) -> list[Made]:
    """Siblings whose names repeat, as those of layers do; each operator launches a kernel."""
    found = []
    for _ in range(rng.randint(4, 7)):
        name = rng.choice(string.ascii_lowercase)
        inside = grown(rng, depth + 1) if depth < 2 and rng.random() < 0.4 else []
        found.append(op(f"op_{name}", kernel(f"k_{name}", rng.randint(1, 50)), *inside))
    return found


def edited_at(calls: list[Made], edit: str, at: int, name: str) -> tuple[list[Made], set[Any]]:
    """The same siblings with one edit, and what must be told of it."""
    new = op(f"op_{name}", kernel(f"k_{name}", 9))
    if edit == "added":
        return [*calls[:at], new, *calls[at:]], {(edit, (), (f"op_{name}",))}
    count = 3 if edit == "fused" else 1
    old = tuple(f"old_{name}{n}" for n in range(count))
    replaced = [op(n, kernel(f"k_{n}", 3)) for n in old]
    before = [*calls[:at], *replaced, *calls[at:]]
    after = {"removed": [], "renamed": [new], "fused": [new]}[edit]
    del calls[:]
    calls += before
    return [*before[:at], *after, *before[at + count :]], {
        (edit, old, (f"op_{name}",) if after else ())
    }


@pytest.mark.parametrize("seed", range(60))
def test_of_random_pairs_the_sets_of_edits_are_exact(seed: int) -> None:
    """Each of three phases has one edit, at a place where its neighbours have a match."""
    rng = random.Random(seed)  # noqa: S311  # the same pairs each time
    before: list[Made] = []
    after: list[Made] = []
    told: set[Any] = set()
    for number, phase in enumerate(("forward", "backward", "update")):
        calls = grown(rng)
        edit = rng.choice(("added", "removed", "renamed", "fused"))
        changed, expected = edited_at(calls, edit, rng.randint(1, 3), f"new{number}")
        told |= {(e, phase, kind, tuple(n.replace("op_", "k_").replace("old_", "k_old_") for n in a)
                  if kind == "kernel" else a,
                  tuple(n.replace("op_", "k_") for n in b) if kind == "kernel" else b)
                 for e, a, b in expected for kind in ("operator", "kernel")}  # fmt: skip
        before.append(within(phase, *calls))
        after.append(within(phase, *changed))
    found, sums = between(rows(*before), rows(*after))
    assert {(e.edit, e.path, e.kind, e.baseline, e.candidate) for e in found} == told
    calls_counts = Counter(s.kind for s in sums)
    assert calls_counts == {"operator": 1, "kernel": 1}

"""Ranges around collectives are found as a search through all of them finds them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracekit.ingest.kineto.collectives import Meta
from tracekit.ingest.kineto.links import HostComm, HostComms

FEW = st.integers(0, 3)
MOMENT = st.integers(0, 20)
RANGE = st.builds(
    lambda pid, thread, start, dur, ids, op: HostComm._make(
        (pid, thread, start, start + dur, *ids, Meta(op))
    ),
    st.none() | FEW,
    st.none() | FEW,
    MOMENT,
    MOMENT,
    st.tuples(st.none() | FEW, st.none() | FEW, st.integers(0, 99)),
    st.sampled_from(["all_reduce", "barrier"]),
)


@given(st.lists(RANGE, max_size=30), st.none() | FEW, st.none() | FEW, FEW, MOMENT)
def test_ranges_are_found_by_id_and_by_moment(
    ranges: list[HostComm], external: int | None, pid: int | None, thread: int, moment: int
) -> None:
    """The first of an id, of those that start together the longest; the last that holds a moment,
    among the four that began last before it."""
    comms = HostComms()
    for one in ranges:
        comms.add(one)
    comms.finish()
    assert list(comms) == ranges
    ordered = sorted(ranges, key=lambda c: (c.start, -c.end, c.external_id or 0))
    of_id = [c for c in ordered if external and c.external_id == external]
    assert comms.by_id(external) == (of_id[0] if of_id else None)
    on_thread = [c for c in ordered if (c.pid, c.thread) == (pid, thread) and c.start <= moment]
    holding = [c for c in on_thread[-4:] if moment <= c.end]
    assert comms.around(pid, thread, moment) == (holding[-1] if holding else None)


def test_nothing_is_found_among_none() -> None:
    comms = HostComms()
    comms.finish()
    assert len(comms) == 0
    assert (comms.by_id(1), comms.around(1, 1, 5)) == (None, None)

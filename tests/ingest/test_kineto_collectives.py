"""Collectives of a trace: from the kernel's metadata, the operator's, a range's or a name."""

from __future__ import annotations

import json

import pytest

from kineto_events import NCCL, comm, kernel, launch, read, step, trace, x


def test_metadata_on_the_kernel() -> None:
    info = {"rank": 6, "world_size": 8, "backend": "nccl"}
    sink = read(trace([kernel(NCCL, 20, 2, **comm(Seq=17))], distributedInfo=info))
    (row,) = sink.rows("collective")
    expected = {
        "op": "all_reduce",
        "reduction": "sum",
        "message_bytes": 2000,
        "in_bytes": 2000,
        "dtype": "BFloat16",
        "group_name": "5",
        "group_size": 2,
        "group_rank": 1,
        "group_source": "file",
        "sequence": 17,
        "sequence_source": "file",
        "timeline": "device",
        "class_source": "args",
        "library": "nccl",
        "is_p2p": False,
        "gpu_op_place": 0,
        "enqueue_ns": None,
        "in_split_sizes": None,
    }
    assert {k: row[k] for k in expected} == expected
    (group,) = sink.rows("process_group")
    assert (group["group_id"], group["ranks"], group["description"]) == (
        row["group_id"],
        [4, 6],
        "mesh_tp",
    )


def test_metadata_on_the_operator_only() -> None:
    events = [
        x("cpu_op", "record_param_comms", 5, 10, **{"External id": 40, **comm(Seq=3)}),
        launch(1, 8, **{"External id": 40}),
        kernel(NCCL, 20, 2, 1, **{"External id": 40}),
    ]
    (row,) = read(trace(events)).rows("collective")
    assert (
        row["op"],
        row["message_bytes"],
        row["class_source"],
        row["sequence"],
        row["enqueue_ns"],
    ) == ("all_reduce", 2000, "args", 3, 5000)


def test_external_ids_that_are_correlations_link_nothing() -> None:
    events = [
        x(
            "cpu_op",
            "record_param_comms",
            5,
            10,
            **{"External id": 1, **comm(**{"Collective name": "broadcast"})},
        ),
        launch(1, 100),
        kernel(NCCL, 120, 2, 1, **{"External id": 1}),
    ]
    assert read(trace(events)).rows("collective", "op", "class_source") == [("all_reduce", "name")]


def test_metadata_from_the_range_alone() -> None:
    dims = {"Input Dims": [[4, 8], [2]], "Input type": ["float", "float"]}
    events = [
        x("user_annotation", "nccl:all_reduce", 5, 10, **dims),
        launch(1, 8),
        kernel(NCCL, 20, 2, 1),
    ]
    assert read(trace(events)).rows(
        "collective", "op", "class_source", "message_bytes", "in_elements_count"
    ) == [("all_reduce", "annotation", 136, 34)]


@pytest.mark.parametrize(
    ("kind", "expected"), [("float", (4, 1)), ("double", (8, 1)), ("", (None, None))]
)
def test_a_tensor_without_dimensions_is_one_element(
    kind: str, expected: tuple[int | None, int | None]
) -> None:
    """What is no tensor has no type."""
    dims = {"Input Dims": [[]], "Input type": [kind]}
    events = [x("user_annotation", "gloo:all_reduce", 5, 10, **dims)]
    (row,) = read(trace(events)).rows("collective", "message_bytes", "in_elements_count")
    assert row == expected


def test_a_bare_kernel_is_known_by_its_name() -> None:
    assert read(trace([kernel(NCCL, 20, 2)])).rows(
        "collective", "op", "class_source", "message_bytes"
    ) == [("all_reduce", "name", None)]


def test_wait_is_no_collective() -> None:
    wait = comm(
        **{
            "Collective name": "wait",
            "Group size": 1,
            "Process Group Ranks": "[]",
            "In msg nelems": 0,
        }
    )
    sink = read(
        trace(
            [x("cpu_op", "record_param_comms", 5, 10, **wait), launch(1, 8), kernel(NCCL, 20, 2, 1)]
        )
    )
    assert sink.rows("collective", "op", "class_source", "group_size") == [
        ("all_reduce", "name", None)
    ]
    assert sink.rows("process_group") == []


@pytest.mark.parametrize(
    ("name", "inside", "outside", "size"),
    [
        ("allreduce", 100, 100, 200),
        ("_allgather_base", 100, 800, 1600),
        ("_reduce_scatter_base", 800, 100, 1600),
        ("all_to_allv", 100, 120, 200),
        ("broadcast", 100, 100, 200),
        ("send", 100, 100, 200),
        ("recv", 100, 100, 200),
        ("barrier", 0, 0, None),
    ],
)
def test_message_bytes_is_the_size_of_nccl_tests(
    name: str, inside: int, outside: int, size: int | None
) -> None:
    args = comm(**{"Collective name": name, "In msg nelems": inside, "Out msg nelems": outside})
    assert read(trace([kernel("ncclDevKernel_X", 20, 2, **args)])).rows(
        "collective", "message_bytes"
    ) == [size]


def test_unknown_element_types_give_no_bytes() -> None:
    args = comm(dtype="Float3")
    assert read(trace([kernel(NCCL, 20, 2, **args)])).rows(
        "collective", "message_bytes", "dtype"
    ) == [(None, "Float3")]


def test_point_to_point_and_splits() -> None:
    args = comm(**{"Collective name": "send", "Src Rank": 4, "Dst Rank": 6})
    other = comm(
        **{"Collective name": "all_to_allv", "In split size": "[3, 5]", "Out split size": [4, 4]}
    )
    sink = read(
        trace(
            [
                kernel("ncclDevKernel_SendRecv(x)", 20, 2, **args),
                kernel("ncclDevKernel_SendRecv(x)", 30, 2, **other),
            ]
        )
    )
    columns = ("op", "src_rank", "dst_rank", "is_p2p", "in_split_sizes", "out_split_sizes")
    assert sink.rows("collective", *columns) == [
        ("send", 4, 6, True, None, None),
        ("all_to_all", None, None, False, [3, 5], [4, 4]),
    ]


def test_groups_of_more_than_30_ranks() -> None:
    cut = comm(**{"Group size": 64, "Process Group Ranks": "[0, 2, ..., 58]"})
    whole = {**cut, "Global rank start": 0, "Global rank stride": 2}
    sink = read(trace([kernel(NCCL, 20, 2, **cut)]))
    assert sink.rows("collective", "group_id", "group_size") == [(None, 64)]
    assert [r["is_ranks_complete"] for r in sink.rows("process_group")] == [False]
    sink = read(trace([kernel(NCCL, 20, 2, **whole)]))
    (group,) = sink.rows("process_group")
    assert group["is_ranks_complete"]
    assert group["ranks"] == list(range(0, 128, 2))
    assert sink.rows("collective", "group_id") == [group["group_id"]]


HOSTILE = (-1, 2**20, 2**31, 2**63, 2**64, 10**400)


@pytest.mark.parametrize("number", HOSTILE)
def test_what_cannot_be_a_rank_makes_no_group(number: int) -> None:
    members = [0, number]
    if number < 2**63:  # the header's numbers are read one by one, the events' by their type
        info = {
            "rank": 0, "world_size": 2,
            "pg_config": [{"pg_name": "0", "pg_size": 2, "ranks": members}],
        }  # fmt: skip
        sink = read(trace([step(1, 0, 9)], tail={"distributedInfo": info}))
        assert [r["ranks"] for r in sink.rows("process_group")] == [None]
    said = comm(**{"Group size": 2, "Process Group Ranks": json.dumps(members)})
    sink = read(trace([kernel(NCCL, 20, 2, **said)]))
    assert sink.rows("collective", "group_id", "group_size") == [(None, 2)]
    assert [r["is_ranks_complete"] for r in sink.rows("process_group")] == [False]


@pytest.mark.parametrize("number", HOSTILE[2:])
def test_a_split_beyond_its_type_costs_itself(number: int) -> None:
    split = f"[3, {number}]"
    events = [
        kernel(NCCL, 20 + i, 1, **comm(**{"In split size": s}))
        for i, s in enumerate(("[3, 5]", split))
    ]
    sink = read(trace(events))
    fits = [3, number] if number < 2**32 else None
    assert [r["in_split_sizes"] for r in sink.rows("collective")] == [[3, 5], fits]


def test_a_cut_group_is_found_by_its_name_in_the_header() -> None:
    cut = comm(**{"Group size": 40, "Process Group Ranks": "[0, 1, ..., 29]"})
    config = [
        {
            "pg_name": "5",
            "pg_desc": "dp",
            "backend_config": "cuda:nccl",
            "pg_size": 40,
            "ranks": list(range(40)),
        }
    ]
    info = {"rank": 7, "world_size": 40, "backend": "nccl", "pg_count": 1, "pg_config": config}
    sink = read(trace([kernel(NCCL, 20, 2, **cut)], tail={"distributedInfo": info}))
    (group,) = sink.rows("process_group")
    assert sink.rows("collective", "group_id", "group_rank") == [(group["group_id"], 7)]


def test_on_demand_traces_write_ranks_as_text() -> None:
    config = [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": 2,
            "ranks": "[0, 1]",
        }
    ]
    info = {
        "backend": "nccl",
        "rank": 1,
        "world_size": 2,
        "pg_config": config,
        "nccl_version": "unknown",
    }
    sink = read(trace([], tail={"distributedInfo": info}))
    assert [r["ranks"] for r in sink.rows("process_group")] == [[0, 1]]
    assert (sink.facts["file_rank"], sink.facts["versions"], sink.facts["status"]) == (
        1,
        [],
        "empty",
    )


def test_gloo_runs_on_the_host() -> None:
    events = [step(2, 0, 100), x("user_annotation", "gloo:all_reduce", 10, 30, tid=77)]
    (row,) = read(trace(events)).rows("collective")
    expected = {
        "op": "all_reduce",
        "library": "gloo",
        "timeline": "host",
        "thread": 77,
        "step": 2,
        "step_source": "time",
        "group_id": None,
        "device": None,
        "gpu_op_place": None,
        "class_source": "annotation",
    }
    assert {k: row[k] for k in expected} == expected


def messages(*, count: int, inputs: list[str] | None, groups: int = 1) -> list[tuple[object, ...]]:
    """A send to, and a receive from, whom ``inputs`` name, of rank 6 of a group of 5, 6 and 7."""
    given = {} if inputs is None else {"Concrete Inputs": inputs}
    events = [x("cpu_op", "c10d::send", 10, 4, **given), x("user_annotation", "gloo:send", 12, 30)]
    events += [x("cpu_op", "c10d::recv_", 20, 4, **given)]
    events += [x("user_annotation", "gloo:recv", 23, 5)]
    events += [x("user_annotation", "gloo:recv", 26, 5), x("user_annotation", "gloo:recv", 12, 1)]
    config = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 3, "ranks": [5, 6, 7]}
    info = {"rank": 6, "world_size": 8, "pg_count": count, "pg_config": [config] * groups}
    sink = read(trace(events, distributedInfo=info))
    return sink.rows("collective", "op", "peer_group_rank", "src_rank", "dst_rank")


TWO = [("recv", None, None, None)] * 2
"""What no operator is around, or one that does something else."""


def test_a_message_goes_to_whom_its_operator_names() -> None:
    found = messages(count=1, inputs=["", "", "2", "0"])
    assert found == [("send", 2, None, 7), ("recv", 2, 7, None), *TWO]


@pytest.mark.parametrize(("count", "groups"), [(2, 1), (1, 2), (1, 0)])
def test_where_there_may_be_other_groups_the_number_counts_within_one(
    count: int, groups: int
) -> None:
    found = messages(count=count, inputs=["", "", "2", "0"], groups=groups)
    assert found == [("send", 2, None, None), ("recv", 2, None, None), *TWO]


def test_a_number_beyond_the_group_names_nobody_of_it() -> None:
    found = messages(count=1, inputs=["", "", "3", "0"])
    assert found == [("send", 3, None, None), ("recv", 3, None, None), *TWO]


@pytest.mark.parametrize(
    "inputs",
    [
        None,
        [],
        ["", "", "2"],
        ["", "", "-1", "0"],
        ["", "", "", "0"],
        ["", "", "1_0", "0"],
        ["", "", "\u0662", "0"],
        ["", "", "9" * 30, "0"],
        ["", "", 2, "0"],
        {"2": 2},
        "2",
    ],
)
def test_what_names_nobody_is_no_peer(inputs: list[str] | None) -> None:
    found = messages(count=1, inputs=inputs)
    assert found == [("send", None, None, None), ("recv", None, None, None), *TWO]


@pytest.mark.parametrize(
    ("name", "library", "op"),
    [
        ("void deep_ep::intranode::dispatch<8>(int*)", "deepep", "dispatch"),
        ("void x::multimem_all_reduce_kernel<4>(int*)", "symm_mem", "all_reduce"),
        ("void vllm::cross_device_reduce_2stage<half, 8>(int*)", "custom_all_reduce", "all_reduce"),
    ],
)
def test_communication_beyond_nccl(name: str, library: str, op: str) -> None:
    sink = read(trace([kernel(name, 20, 2)]))
    assert sink.rows("gpu_op", "class", "class_source") == [("communication", "name")]
    assert sink.rows("collective", "library", "op") == [(library, op)]


@pytest.mark.parametrize("name", ["ncclNetIrecv()", "ncclNetTest", "ncclNetIsend()"])
def test_what_the_network_of_nccl_marks_is_no_collective(name: str) -> None:
    """A patched NCCL marks its network's calls: nobody asked for them, and no kernel is theirs."""
    events = [x("user_annotation", name, 5, 10), x("cpu_op", name, 6, 2), launch(1, 8)]
    sink = read(trace([*events, kernel("gemm", 20, 2, 1)]))
    assert sink.rows("collective") == []
    assert sink.rows("open_collective") == []
    assert "collective" not in sink.rows("annotation", "domain")


def test_copies_inside_a_collective_stay_copies() -> None:
    events = [x("user_annotation", "nccl:all_gather", 5, 10), launch(1, 8)]
    events += [kernel("void at::native::elementwise_kernel<4>(int)", 20, 2, 1, **comm())]
    sink = read(trace(events))
    assert sink.rows("gpu_op", "class") == ["compute"]
    assert sink.rows("collective") == []

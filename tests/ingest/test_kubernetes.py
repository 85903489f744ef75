"""Kubernetes' pods and events: what is read, what is kept of it, and what is no such file.

Made from the documentation of Kubernetes 1.31 and kubectl; no file of a real cluster was at hand.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from memory_sink import MemorySink, source_of

from tracekit.ingest import IngestOptions, ingestor, recognise

SECRET = "PLANTEDSECRET0123456789"  # noqa: S105  # it stands in what kubectl prints of a pod
NOON_NS = 1_714_564_800 * 10**9  # date -u -d 2024-05-01T12:00:00Z +%s


def pod(
    index: int, state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"train-worker-{index}",
            "labels": {
                "training.kubeflow.org/job-name": "train",
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": str(index),
                "note": SECRET,
            },
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET},
        },
        "spec": {
            "nodeName": f"gpu-0{index}",
            "containers": [
                {"name": "pytorch", "command": ["python", f"--key={SECRET}"],
                 "env": [{"name": "WANDB_API_KEY", "value": SECRET}]},
            ],
        },
        "status": {
            "phase": "Failed",
            "containerStatuses": [
                {"name": "pytorch", "restartCount": restarts, "state": state,
                 "lastState": last or {}},
            ],
        },
    }  # fmt: skip


def ended(reason: str, code: int, at: str = "2024-05-01T12:00:00Z") -> dict[str, Any]:
    return {
        "terminated": {
            "reason": reason, "exitCode": code, "startedAt": "2024-05-01T10:00:00Z",
            "finishedAt": at, "message": SECRET, "containerID": f"containerd://{SECRET}",
        }
    }  # fmt: skip


def event(reason: str, kind: str, name: str, at: str | None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.17"},
        "involvedObject": {"kind": kind, "name": name}, "reason": reason, "message": SECRET,
        "type": "Warning", "firstTimestamp": at, "lastTimestamp": at, "count": 3, **more,
    }  # fmt: skip


def listed(*items: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=4)


DESCRIBED = f"""\
Name:             train-worker-3
Namespace:        ml
Priority:         0
Node:             gpu-07/10.0.0.7
Start Time:       Wed, 01 May 2024 10:00:00 +0000
Labels:           training.kubeflow.org/job-name=train
                  training.kubeflow.org/replica-index=3
                  training.kubeflow.org/replica-type=worker
                  note={SECRET}
Annotations:      key: {SECRET}
Status:           Failed
Containers:
  pytorch:
    Container ID:  containerd://{SECRET}
    Command:
      python
      --key={SECRET}
    State:          Terminated
      Reason:       Error
      Message:      {SECRET}
      Exit Code:    1
      Started:      Wed, 01 May 2024 11:00:00 +0000
      Finished:     Wed, 01 May 2024 12:00:00 +0000
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      Wed, 01 May 2024 10:00:00 +0000
      Finished:     Wed, 01 May 2024 10:59:00 +0000
    Ready:          False
    Restart Count:  2
    Environment:
      WANDB_API_KEY:  {SECRET}
Conditions:
  Type              Status
  Ready             False
Events:
  Type     Reason            Age                From     Message
  ----     ------            ----               ----     -------
  Normal   Scheduled         60m                default  {SECRET}
  Warning  BackOff           5m (x12 over 40m)  kubelet  {SECRET}
"""

EVENTS = f"""\
NAMESPACE   LAST SEEN   TYPE      REASON             OBJECT                MESSAGE
ml          5m          Normal    Pulled             pod/train-worker-0    {SECRET}
ml          4m          Warning   FailedScheduling   pod/train-worker-1    {SECRET}
ml          3m          Normal    NodeNotReady       node/gpu-01           {SECRET}
ml          2m          Warning   Evicted            pod/train-worker-2    {SECRET}
"""

PODS = """\
NAME             READY   STATUS      RESTARTS      AGE   IP         NODE     NOMINATED NODE
train-worker-0   0/1     OOMKilled   1 (5m ago)    2h    10.0.0.1   gpu-00   <none>
train-worker-1   0/1     Error       0             2h    10.0.0.2   gpu-01   <none>
train-worker-2   1/1     Running     0             2h    10.0.0.3   gpu-02   <none>
train-worker-3   0/1     Preempted   0             2h    <none>     gpu-03   <none>
"""


def read(text: str, name: str = "pods.txt") -> tuple[MemorySink, list[dict[str, Any]]]:
    source, sink = source_of(text.encode(), name), MemorySink()
    assert recognise(source).ingestor == "kubernetes"
    ingestor("kubernetes").read(source, sink, IngestOptions())
    assert SECRET not in str([t.to_pylist() for ts in sink.tables.values() for t in ts])
    assert SECRET not in str(sink.facts) + str(sink.shapes)
    rows = [
        {"place": r["place"], "code": r["code"], "time_ns": r["time_ns"]}
        | dict(f.split("=", 1) for f in r["fields"])
        for r in sink.rows("log_event")
    ]
    assert len({r["place"] for r in rows}) == len(rows)
    return sink, rows


def test_a_container_that_ended_is_told_with_its_pod_and_node() -> None:
    running = pod(1, {"running": {"startedAt": "2024-05-01T10:00:00Z"}})
    sink, rows = read(listed(pod(0, ended("Error", 1)), running))
    assert rows == [
        {"place": 1, "code": "pod-ended", "time_ns": NOON_NS, "task": "pod/train-worker-0",
         "replica": "worker-0", "host": "gpu-00", "exit_code": "1", "reason": "Error",
         "round": "0", "start_ns": str(NOON_NS - 7200 * 10**9)},
    ]  # fmt: skip
    assert sink.facts["time_basis"] == "epoch"
    assert sink.counters["kubernetes_object"] == 2


def test_how_it_ended_before_its_restart_is_told_too() -> None:
    state, last = ended("Error", 143), ended("OOMKilled", 137, "2024-05-01T11:00:00Z")
    _, rows = read(listed(pod(2, state, last, restarts=3)))
    assert [(r["round"], r["signal"], r.get("why")) for r in rows] == [
        ("2", "SIGKILL", "out of memory"), ("3", "SIGTERM", None)
    ]  # fmt: skip


def test_what_ended_well_is_no_failure() -> None:
    assert read(listed(pod(0, ended("Completed", 0))))[1] == []


@pytest.mark.parametrize(
    ("reason", "why"),
    [("Evicted", "evicted"), ("NodeLost", "node failure"), ("Terminated", "node failure")],
)
def test_the_first_pod_that_was_ended_from_outside_is_the_job_s_end(reason: str, why: str) -> None:
    first, second = pod(0, ended("Error", 137)), pod(1, ended("Error", 137, "2024-05-01T12:00:09Z"))
    second["status"]["reason"] = first["status"]["reason"] = reason
    _, rows = read(listed(second, first))
    (state,) = [r for r in rows if r["code"] == "job-state"]
    assert (state["why"], state["host"], state["job"]) == (why, "gpu-00", "train")
    assert state["time_ns"] == NOON_NS


def test_a_condition_says_what_disturbed_a_pod() -> None:
    given = pod(0, {})
    given["status"]["conditions"] = [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
         "lastTransitionTime": "2024-05-01T12:00:00Z"},
    ]  # fmt: skip
    _, (state,) = read(json.dumps(given))
    assert (state["code"], state["why"], state["time_ns"]) == ("job-state", "preempted", NOON_NS)


def test_events_are_told_by_their_reason() -> None:
    at = "2024-05-01T12:00:00Z"
    _, rows = read(
        listed(
            event("Scheduled", "Pod", "train-worker-0", at),
            event("FailedScheduling", "Pod", "train-worker-0", at),
            event("NodeNotReady", "Node", "gpu-03", at),
            event("Preempted", "Pod", "train-worker-1", None, eventTime="2024-05-01T12:00:00.5Z"),
        )
    )
    assert [(r["code"], r["reason"], r.get("task"), r.get("host")) for r in rows] == [
        ("pod-event", "FailedScheduling", "pod/train-worker-0", None),
        ("pod-event", "NodeNotReady", None, "gpu-03"),
        ("job-state", "Preempted", "pod/train-worker-1", None),
    ]
    assert [r["time_ns"] for r in rows] == [NOON_NS, NOON_NS, NOON_NS + 500_000_000]
    assert rows[0]["count"] == "3"


def test_a_node_that_is_not_ready_ends_no_job_of_itself() -> None:
    _, rows = read(listed(event("NodeNotReady", "Node", "gpu-03", "2024-05-01T12:00:00Z")))
    assert [r["code"] for r in rows] == ["pod-event"]


@pytest.mark.parametrize(
    ("reason", "message", "fields"),
    [
        ("OOMKilling", f"Memory cgroup out of memory: Killed process 4121 ({SECRET}) total-vm:9kB",
         {"pid": "4121", "of": "cgroup"}),
        ("OOMKilling", "Killed process 77 (python) total-vm:9kB", {"pid": "77", "of": "host"}),
        ("SystemOOM", f"System OOM encountered, victim process: {SECRET}, pid: 5",
         {"pid": "5", "of": "host"}),
        ("SystemOOM", "System OOM encountered", {"of": "host"}),
        ("OOMKilling", "Killed process 123456789 (python)", {"of": "host"}),
    ],
)  # fmt: skip
def test_a_node_s_kernel_killed_a_process(
    reason: str, message: str, fields: dict[str, str]
) -> None:
    _, (row,) = read(listed(event(reason, "Node", "gpu-03", "2024-05-01T12:00:00Z",
                                  message=message)))  # fmt: skip
    assert (row["code"], row["time_ns"], row["host"]) == ("oom-kill", NOON_NS, "gpu-03")
    assert row["why"] == "out of memory"
    assert {k: row[k] for k in ("pid", "of") if k in row} == fields
    text = EVENTS.replace("NodeNotReady", f"{reason:12}")
    (row,) = (r for r in read(text)[1] if r["code"] == "oom-kill")
    assert (row["place"], row["host"]) == (4, "gpu-01")


def test_a_description_says_the_same() -> None:
    _, rows = read(DESCRIBED)
    end = {"code": "pod-ended", "task": "pod/train-worker-3", "replica": "worker-3",
           "host": "gpu-07"}  # fmt: skip
    assert [{k: r[k] for k in end} for r in rows[:2]] == [end, end]
    assert [r.get("round") for r in rows] == ["2", "1", None]
    lines = DESCRIBED.splitlines()
    assert [lines[r["place"] - 1].split()[0] for r in rows] == ["State:", "Last", "Warning"]
    assert (rows[0]["exit_code"], rows[0]["time_ns"]) == ("1", NOON_NS)
    assert (rows[1]["why"], rows[1]["time_ns"]) == ("out of memory", NOON_NS - 61 * 60 * 10**9)
    assert (rows[2]["code"], rows[2]["reason"]) == ("pod-event", "BackOff")


def test_a_table_of_events_has_no_times() -> None:
    _, rows = read(EVENTS)
    assert [(r["place"], r["code"], r["reason"], r.get("task"), r["time_ns"]) for r in rows] == [
        (3, "pod-event", "FailedScheduling", "pod/train-worker-1", None),
        (4, "pod-event", "NodeNotReady", None, None),
        (5, "job-state", "Evicted", "pod/train-worker-2", None),
    ]
    assert rows[1]["host"] == "gpu-01"


def test_a_table_of_pods_says_how_they_ended() -> None:
    _, rows = read(PODS)
    assert [(r["place"], r["code"], r["task"], r.get("why"), r["host"]) for r in rows] == [
        (2, "pod-ended", "pod/train-worker-0", "out of memory", "gpu-00"),
        (5, "job-state", "pod/train-worker-3", "preempted", "gpu-03"),
    ]


@pytest.mark.parametrize(
    "labels",
    [
        {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": "w",
         "batch.kubernetes.io/job-completion-index": "4"},
        {"leaderworkerset.sigs.k8s.io/worker-index": "4"},
    ],
)  # fmt: skip
def test_labels_of_other_controllers_give_the_number(labels: dict[str, str]) -> None:
    given = pod(0, ended("Error", 1))
    given["metadata"]["labels"] = labels
    _, (row,) = read(json.dumps(given))
    assert row["replica"].rpartition("-")[2] == "4"


def test_yaml_says_the_same_as_json() -> None:
    import yaml

    given = {"apiVersion": "v1", "kind": "List", "items": [pod(0, ended("OOMKilled", 137))]}
    assert read(yaml.safe_dump(given))[1] == read(json.dumps(given))[1]


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: List\nitems:\n- &a {kind: Pod}\n- *a\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x\n",
        "apiVersion: v1\nkind: Pod\nmetadata: !!python/object/apply:os.system [x]\n",
        '{"apiVersion": "v1", "kind": "Pod", ',
        '{"apiVersion": "v1", "kind": "List", "items": ' + "[" * 50_000,
    ],
)
def test_what_is_no_whole_document_is_said_to_be(text: str) -> None:
    sink, rows = read(text)
    assert rows == []
    assert sink.facts["status"] == "partial"


def test_damage_costs_only_itself() -> None:
    broken = deepcopy(pod(0, ended("Error", 1)))
    broken["metadata"] = ["x"]
    broken["spec"]["nodeName"] = 7
    broken["status"]["containerStatuses"] += ["x", {"state": {"terminated": 3}}]
    terminated = broken["status"]["containerStatuses"][0]["state"]["terminated"]
    terminated |= {
        "finishedAt": "soon",
        "startedAt": "0001-01-01T00:00:00Z",
        "reason": SECRET + "-",
    }
    _, rows = read(listed(broken, pod(1, ended("Error", 2))))
    assert [r["exit_code"] for r in rows] == ["1", "2"]
    assert rows[0]["time_ns"] is None


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ConfigMap\n",
        '{"apiVersion": "v1", "kind": "Service"}',
        "Name: x\nloss: 3\n",
        "LAST 3\n",
    ],
)
def test_what_is_none(text: str) -> None:
    assert recognise(source_of(text.encode(), "x.txt")).ingestor != "kubernetes"

"""What Kubernetes says of a job's pods: ``kubectl get pods|events`` and ``kubectl describe pod``.

Rows are ``log_event``: ``pod-ended``, a container that ended with an error (``task``: the pod;
``replica``, ``host``, ``exit_code`` or ``signal``, ``reason``, ``round``: its restarts until then,
``start_ns``, and ``count``: how often the pod's container that was started again most often was),
now or the time before; ``pod-restarted``, a pod that tells of no such end (``task``, ``replica``,
``host``, ``count``); ``pod-event``, a warning of a closed list of reasons; and
once a file ``job-state``, where a pod was evicted or preempted, or its node failed: the first of
these is what the job's scheduler ended it for. Messages, commands, environments and all other
labels are never looked at.

The number of a replica is that of PyTorchJob and its kin (training.kubeflow.org/replica-index),
JobSet, indexed jobs, StatefulSets, LeaderWorkerSet or Volcano.

Formats: by the documentation of Kubernetes 1.31 and kubectl, no file of a real cluster was at hand.
Times are UTC, but for tables and for the events of ``describe``, which say only how long ago.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from tracekit.ingest import streams
from tracekit.ingest.base import Recognition, Sink, SourceFile, stated_host, write_columns
from tracekit.ingest.lines import lines
from tracekit.ingest.steplog.failures import ended_by_signal

NAME = "kubernetes"

MAX_JSON_BYTES = 64 << 20
"""Four thousand pods as JSON; YAML takes ten times as long to read."""
MAX_YAML_BYTES = 4 << 20
MAX_ROWS = 100_000
MAX_LINE_BYTES = 64 << 10

_WARNINGS = frozenset((
    "BackOff", "DeadlineExceeded", "Evicted", "ExceededGracePeriod", "Failed",
    "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMount", "FailedScheduling", "Killing",
    "NodeNotReady", "NodeNotSchedulable", "NotTriggerScaleUp", "OOMKilling", "Preempted",
    "Preempting", "Rebooted", "SystemOOM", "TaintManagerEviction", "TerminationByKubelet",
    "Unhealthy",
))  # fmt: skip
"""Reasons of events that are kept; what else components say tells of no fault."""
_ENDED_FOR = {
    "Evicted": "evicted",
    "Preempted": "preempted",
    "Preempting": "preempted",
    "DeadlineExceeded": "deadline",
    "NodeLost": "node failure",
    "NodeNotReady": "node failure",
    "Shutdown": "node failure",
    "NodeShutdown": "node failure",
    "Terminated": "node failure",
    "PreemptionByScheduler": "preempted",
    "PreemptionByKubeScheduler": "preempted",
    "DeletionByTaintManager": "node failure",
    "TaintManagerEviction": "node failure",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "evicted",
}
"""What a pod ended for, by the reason of its status, of its condition DisruptionTarget or of an
event. A pod that a terminated node leaves behind has reason Terminated."""
_NODES = frozenset(("NodeNotReady", "Rebooted"))
"""Events of nodes, whichever pods were there."""
_OUT_OF_MEMORY = frozenset(("OOMKilling", "SystemOOM"))
"""A node's kernel killed a process, as the node problem detector and the kubelet say."""
_KILLED = re.compile(r"(?:[Kk]illed process |\bpid: )(\d{1,7})\b")
_INDEX = (
    "training.kubeflow.org/replica-index", "batch.kubernetes.io/job-completion-index",
    "jobset.sigs.k8s.io/job-index", "leaderworkerset.sigs.k8s.io/worker-index",
    "apps.kubernetes.io/pod-index", "volcano.sh/task-index", "pytorch-replica-index",
)  # fmt: skip
_TYPE = (
    "training.kubeflow.org/replica-type", "jobset.sigs.k8s.io/replicatedjob-name",
    "volcano.sh/task-spec", "pytorch-replica-type",
)  # fmt: skip
_JOB = (
    "training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name",
    "batch.kubernetes.io/job-name", "leaderworkerset.sigs.k8s.io/name", "volcano.sh/job-name",
    "pytorch-job-name", "job-name",
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]{0,60}")
_OBJECT = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
_TEXT_HEAD = re.compile(r"(?:NAMESPACE +)?(?:LAST SEEN +|NAME +READY +STATUS)")
_DESCRIBED = re.compile(r"(?m)^Name: +\S+\r?$")
_API = re.compile(r"(?m)^apiVersion: *\S+")
_KINDS = re.compile(r'"kind" ?: ?"(?:Pod|Event|List|PodList|EventList)"')
_YAML_KINDS = re.compile(r"(?m)^ {0,4}kind: (?:Pod|Event|List|PodList|EventList) *\r?$")
_GAP = re.compile(r"\S+(?: \S+)*")


class _Pod(Struct):
    """A pod, as far as its object or its description says."""

    place: int | None
    """Line; None in a document, where what is kept is counted."""
    name: str = ""
    host: str | None = None
    job: str | None = None
    replica: str | None = None
    why: str | None = None
    why_ns: int | None = None
    ends: list[_End] = field(default_factory=list)
    restarts: int = 0
    """Of the container that was started again most often."""


class _End(Struct):
    """How a container of it ended."""

    place: int | None = None
    reason: str | None = None
    code: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    restarts: int | None = None


def sniff(head: bytes) -> Recognition | None:
    """Recognise what kubectl prints of pods and events."""
    text = head.decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    if text[:1] == "{":
        is_ours = '"apiVersion"' in text and _KINDS.search(text) is not None
    elif _TEXT_HEAD.match(text):
        is_ours = True
    elif _DESCRIBED.match(text):
        is_ours = "\nNamespace: " in text and "\nNode: " in text
    else:
        is_ours = _API.search(text) is not None and _YAML_KINDS.search(text) is not None
    return Recognition(NAME, "pods or events as kubectl prints them", NAME) if is_ours else None


def read(source: SourceFile, sink: Sink) -> None:
    """Read the pods and events into log_event. Never raises for what a file holds."""
    kept = _Kept(sink)
    with source.open() as stream:
        head = stream.read(1 << 12).decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    with source.open() as stream:
        if _TEXT_HEAD.match(head):
            _table(lines(stream, MAX_LINE_BYTES), kept)
        elif _DESCRIBED.match(head):
            _described(lines(stream, MAX_LINE_BYTES), kept)
        else:
            kept.place_kind = "event"
            limit = MAX_JSON_BYTES if head[:1] == "{" else MAX_YAML_BYTES
            raw = stream.read(limit + 1)
            if len(raw) > limit:
                kept.problem = f"only files of up to {limit >> 20} MB are read"
            else:
                _objects(raw.decode("utf-8", "replace").removeprefix("\ufeff"), kept)
        kept.problem = kept.problem or streams.stream_problem(stream)
    kept.finish()


# --- objects ------------------------------------------------------------------------------------


def _objects(text: str, kept: _Kept) -> None:
    try:
        documents = [json.loads(text)] if text.lstrip()[:1] == "{" else _yaml(text)
    except (ValueError, RecursionError) as error:
        kept.problem = f"it is no whole document: {type(error).__name__}"
        return
    for document in documents:
        items = _map(document).get("items")
        for item in items if isinstance(items, list) else [document]:
            given = _map(item)
            if given.get("kind") == "Event" or "involvedObject" in given or "regarding" in given:
                _event(given, kept)
            elif "containerStatuses" in _map(given.get("status")) or given.get("kind") == "Pod":
                kept.pod(_pod(given))


def _yaml(text: str) -> list[Any]:
    """The documents of a text; ValueError where it is no YAML, or has aliases: a few lines of them
    can stand for any number of objects."""
    import yaml

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("aliases are not read")
            return super().compose_node(parent, index)

    try:
        return list(yaml.load_all(text, Loader=Plain))  # it is a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(type(error).__name__)) from None


def _pod(given: Mapping[str, Any]) -> _Pod:
    metadata, spec, status = (_map(given.get(k)) for k in ("metadata", "spec", "status"))
    pod = _Pod(None, _name(metadata.get("name")), stated_host(_text(spec.get("nodeName"))))
    _label(pod, _map(metadata.get("labels")))
    pod.why = _ENDED_FOR.get(_text(status.get("reason")) or "")
    for condition in _maps(status.get("conditions")):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            pod.why = _ENDED_FOR.get(_text(condition.get("reason")) or "", pod.why)
            pod.why_ns = _moment(condition.get("lastTransitionTime"))
    for name in ("initContainerStatuses", "containerStatuses"):
        for container in _maps(status.get(name)):
            restarts = _whole(container.get("restartCount"))
            pod.restarts = max(pod.restarts, restarts or 0)
            for key, back in (("lastState", 1), ("state", 0)):
                ended = _map(_map(container.get(key)).get("terminated"))
                if ended:
                    pod.ends.append(
                        _End(
                            None,
                            _word(ended.get("reason")),
                            _whole(ended.get("exitCode")),
                            _moment(ended.get("startedAt")),
                            _moment(ended.get("finishedAt")),
                            None if restarts is None else max(restarts - back, 0),
                        )
                    )
    return pod


def _event(given: Mapping[str, Any], kept: _Kept) -> None:
    about = _map(given.get("involvedObject")) or _map(given.get("regarding"))
    series = _map(given.get("series"))
    times = (
        given.get("firstTimestamp"), given.get("deprecatedFirstTimestamp"), given.get("eventTime"),
        given.get("lastTimestamp"), _map(given.get("metadata")).get("creationTimestamp"),
    )  # fmt: skip
    at = next((t for t in map(_moment, times) if t is not None), None)
    count = _whole(given.get("count")) or _whole(series.get("count"))
    host = _text(_map(given.get("source")).get("host")) or _text(given.get("reportingInstance"))
    is_of_node = _text(given.get("reportingComponent")) in (None, "", "kubelet")
    kept.event(
        None, _word(given.get("reason")), _text(about.get("kind")) or "", _name(about.get("name")),
        at, count, host if is_of_node else None, _text(given.get("message")) or "",
    )  # fmt: skip


def _label(pod: _Pod, labels: Mapping[str, Any]) -> None:
    def first(names: Sequence[str]) -> str | None:
        found = next((t for n in names if (t := _text(labels.get(n)))), None)
        return found if found and _OBJECT.fullmatch(found) else None

    index, kind = first(_INDEX), first(_TYPE)
    pod.job = first(_JOB)
    if index is not None and index.isdecimal() and len(index) < 8:
        pod.replica = f"{kind}-{int(index)}" if kind else str(int(index))


# --- tables -------------------------------------------------------------------------------------


def _table(numbered: Iterable[tuple[int, str]], kept: _Kept) -> None:
    """Columns stand where their names do; the last takes the rest of the line."""
    columns: list[tuple[str, int, int | None]] = []
    for place, text in numbered:
        if _TEXT_HEAD.match(text):
            starts = [(m[0], m.start()) for m in _GAP.finditer(text)]
            ends = [at for _, at in starts[1:]]
            columns = [(n, a, b) for (n, a), b in zip(starts, [*ends, None], strict=True)]
            continue
        row = {name: text[a:b].strip() for name, a, b in columns}
        if not columns or not text.strip():
            continue
        if "REASON" in row:
            kind, _, name = row.get("OBJECT", "").partition("/")
            kind, name = (kind, name) if name else (row.get("KIND", ""), row.get("NAME", ""))
            count = row.get("COUNT", "")
            kept.event(
                place, _word(row["REASON"]), kind.capitalize(), _name(name), None,
                int(count) if count.isdecimal() and len(count) < 10 else None, None,
                row.get("MESSAGE", ""),
            )  # fmt: skip
        elif "STATUS" in row:
            pod = _Pod(place, _name(row.get("NAME")), stated_host(row.get("NODE")))
            status = row["STATUS"]
            pod.why = _ENDED_FOR.get(status) if status != "Terminated" else None
            said = row.get("RESTARTS", "").partition(" ")[0]
            restarts = int(said) if said.isdecimal() and len(said) < 10 else None
            pod.restarts = restarts or 0
            if status == "OOMKilled":  # of an error a table says neither code nor time
                pod.ends.append(_End(place, status, restarts=restarts))
            kept.pod(pod)


# --- kubectl describe ---------------------------------------------------------------------------


def _described(numbered: Iterable[tuple[int, str]], kept: _Kept) -> None:
    pod: _Pod | None = None
    section = ""
    end: _End | None = None
    ends: list[tuple[_End, bool]] = []
    """Of the container: how it ended, and whether that was before its last start."""
    for place, text in numbered:
        indent = len(text) - len(text.lstrip(" "))
        key, _, value = text.strip().partition(":")
        value = value.strip()
        if indent == 0 and key:
            section = key
            if key == "Name":
                if pod is not None:
                    kept.pod(pod)
                pod = _Pod(place, _name(value))
            elif pod is not None and key == "Node":
                pod.host = stated_host(value.partition("/")[0])
            elif pod is not None and key == "Reason":
                pod.why, pod.place = _ENDED_FOR.get(value), place
            if key != "Labels":
                continue
        if pod is None:
            continue
        if section == "Labels":
            name, _, label = text.removeprefix("Labels:").strip().partition("=")
            _more_labels(pod, name, label)
        elif section in ("Containers", "Init Containers"):
            if indent <= 2:
                end, ends = None, []
            elif key in ("State", "Last State"):
                end = _End(place) if value == "Terminated" else None
                if end is not None:
                    pod.ends.append(end)
                    ends.append((end, key == "Last State"))
            elif key == "Restart Count" and value.isdecimal() and len(value) < 10:
                pod.restarts = max(pod.restarts, int(value))
                for known, is_before in ends:
                    known.restarts = max(int(value) - is_before, 0)
            elif indent <= 4:
                end = None
            elif end is not None:
                if key == "Reason":
                    end.reason = _word(value)
                elif key == "Exit Code" and value.isdecimal() and len(value) < 6:
                    end.code = int(value)
                elif key == "Started":
                    end.start_ns = _printed(value)
                elif key == "Finished":
                    end.end_ns = _printed(value)
        elif section == "Events" and (words := text.split())[:1] in (["Warning"], ["Normal"]):
            kept.event(place, _word(words[1]) if len(words) > 1 else None, "Pod", pod.name, None,
                       None, None, text)  # fmt: skip
    if pod is not None:
        kept.pod(pod)


def _more_labels(pod: _Pod, name: str, value: str) -> None:
    """One label at a time, as a description has them: of two that say the same the first counts."""
    if name in (*_INDEX, *_TYPE, *_JOB):
        known = _Pod(None)
        _label(known, {name: value})
        pod.job = pod.job or known.job
        if known.replica is not None and (pod.replica or "").isdecimal() is False:
            pod.replica = f"{pod.replica}-{known.replica}" if pod.replica else known.replica
        elif name in _TYPE and _OBJECT.fullmatch(value):
            is_number = (pod.replica or "").isdecimal()
            pod.replica = f"{value}-{pod.replica}" if is_number else pod.replica or value


# --- what is kept -------------------------------------------------------------------------------


class _Row(Struct, frozen=True):
    place: int
    time_ns: int | None
    code: str
    severity: str
    fields: list[str]


class _Kept:
    """Rows of a file, and what ended its job."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._rows: list[_Row] = []
        self._causes: list[_Row] = []
        """What a pod was ended for from outside."""
        self._left_out = 0
        self._count = 0
        self.problem: str | None = None
        self.place_kind = "line"

    def pod(self, pod: _Pod) -> None:
        """A pod, with the ends of its containers."""
        self._count += 1
        who = [f"task=pod/{pod.name}"] if pod.name else []
        who += [f"replica={pod.replica}"] if pod.replica else []
        who += [f"host={pod.host}"] if pod.host else []
        restarts = [f"count={pod.restarts}"] if pod.restarts else []
        ends = [e for e in pod.ends if e.code or e.reason == "OOMKilled"]
        if restarts and not ends:
            self._add(pod.place, None, "pod-restarted", "warning", [*who, *restarts])
        for end in ends:
            is_memory = end.reason == "OOMKilled"
            told = list(who)
            if is_memory:
                told += ["signal=SIGKILL", "why=out of memory", "of=cgroup"]
            elif end.code is not None:
                told.append(_ended(end.code))
            told += [f"reason={end.reason}"] if end.reason else []
            told += [f"round={end.restarts}"] if end.restarts is not None else []
            told += [f"start_ns={end.start_ns}"] if end.start_ns is not None else []
            told += restarts
            self._add(end.place, end.end_ns, "pod-ended", "error", told)
        if pod.why:
            at = pod.why_ns or max((e.end_ns for e in pod.ends if e.end_ns), default=None)
            told = [f"task=pod/{pod.name}"] if pod.name else []
            self._cause(pod.place, at, [*told, f"why={pod.why}"], pod.host, pod.job)

    def event(
        self,
        place: int | None,
        reason: str | None,
        kind: str,
        name: str,
        at: int | None,
        count: int | None,
        host: str | None,
        message: str,
    ) -> None:
        """A warning that says why something did not run, or no longer does; of its message only
        which process was killed for want of memory."""
        self._count += 1
        if reason not in _WARNINGS:
            return
        is_node = kind == "Node" or reason in _NODES or reason in _OUT_OF_MEMORY
        node = stated_host(name) if kind == "Node" else stated_host(host)
        told = [f"reason={reason}"]
        told += [f"task=pod/{name}"] if name and kind == "Pod" else []
        told += [f"host={node}"] if node and _OBJECT.fullmatch(node) else []
        told += [f"count={count}"] if count is not None else []
        if reason in _OUT_OF_MEMORY:
            killed = _KILLED.search(message[:MAX_LINE_BYTES])
            told += [f"pid={int(killed[1])}"] if killed else []
            told += ["why=out of memory", f"of={'cgroup' if 'cgroup' in message else 'host'}"]
            self._add(place, at, "oom-kill", "error", told)
            return
        why = _ENDED_FOR.get(reason)
        # A node that is not ready may have none of the job's pods; its pods say so themselves.
        if why is not None and not is_node:
            told = [f for f in told if not f.startswith(("host=", "count="))]
            self._cause(place, at, [*told, f"why={why}"], node, None)
        else:
            self._add(place, at, "pod-event", "warning", told)

    def _add(
        self, place: int | None, at: int | None, code: str, severity: str, fields: list[str]
    ) -> None:
        if len(self._rows) < MAX_ROWS:
            number = len(self._rows) + len(self._causes) + 1 if place is None else place
            self._rows.append(_Row(number, at, code, severity, fields))
        else:
            self._left_out += 1

    def _cause(
        self, place: int | None, at: int | None, fields: list[str], host: str | None,
        job: str | None,
    ) -> None:  # fmt: skip
        if len(self._causes) < MAX_ROWS:
            number = len(self._rows) + len(self._causes) + 1 if place is None else place
            told = [*([f"job={job}"] if job else []), *fields, *([f"host={host}"] if host else [])]
            self._causes.append(_Row(number, at, "pod-event", "error", told))
        else:
            self._left_out += 1

    def finish(self) -> None:
        """Write the rows and the facts."""
        if self._causes:
            first = min(self._causes, key=lambda r: (r.time_ns is None, r.time_ns or 0, r.place))
            self._causes.remove(first)
            self._causes.append(replace(first, code="job-state"))
        self._rows += self._causes
        if self._rows:
            columns = ("place", "time_ns", "code", "severity", "fields")
            write_columns(
                self._sink, "log_event", {c: [getattr(r, c) for r in self._rows] for c in columns}
            )
        self._sink.count(
            "kubernetes_object", self._count, severity="info", doc="Pods and events that were read."
        )
        self._sink.count(
            "kubernetes_left_out", self._left_out, doc="Rows beyond those kept of one file."
        )
        known = [r.time_ns for r in self._rows if r.time_ns is not None]
        self._sink.fact(
            place_kind=self.place_kind,
            producer="Kubernetes",
            time_basis="epoch" if known else "none",
            is_truncated_end=self.problem is not None,
        )
        if known:
            self._sink.fact(window_start_ns=min(known), window_end_ns=max(known))
        if self.problem is not None:
            self._sink.fact(status="partial", reason=f"it was not read to its end ({self.problem})")
        elif not self._count:
            self._sink.fact(status="empty", reason="it has no pod and no event")


def _ended(code: int) -> str:
    """What a container's exit code says: beyond 128 the signal that ended its first process."""
    return ended_by_signal(code - 128) if 128 < code <= 128 + 64 else f"exit_code={code}"


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _maps(value: Any) -> Iterator[Mapping[str, Any]]:
    return (v for v in value if isinstance(v, dict)) if isinstance(value, list) else iter(())


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def _name(value: Any) -> str:
    return value if isinstance(value, str) and _OBJECT.fullmatch(value) else ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 10**9 else None


def _moment(value: Any) -> int | None:
    """ns of a time of RFC 3339, which YAML may have made a time already."""
    if isinstance(value, str) and len(value) < 40:
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return _ns(value) if isinstance(value, datetime) else None


def _printed(text: str) -> int | None:
    """ns of ``Mon, 01 Jul 2024 10:00:00 +0000``."""
    try:
        return _ns(parsedate_to_datetime(text[:40]))
    except (ValueError, TypeError, IndexError):
        return None


def _ns(at: datetime) -> int | None:
    try:
        whole = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        return None
    return int(whole) * 10**9 + at.microsecond * 1000 if whole >= 0 else None

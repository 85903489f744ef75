"""Where a job ran: Slurm jobs and Kubernetes objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tracekit.job import JobDescription
from tracekit.jobs_import.values import described, whole

if TYPE_CHECKING:
    import yaml

MAX_HOSTS = 100_000
"""A host list that names more is not expanded: brackets multiply."""

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)")


def slurm(text: str) -> JobDescription | None:
    """``scontrol show job``, ``scontrol show job --json`` or ``sacct --json``."""
    if text.lstrip()[:1] == "{":
        return _slurm_json(text)
    if not re.search(r"(?m)^\s*JobId=\d+", text):
        return None
    found = {m[1]: m[2] for m in _FIELD.finditer(text)}
    per_node = whole(found.get("NtasksPerN:B:S:C", "").split(":")[0])
    gpus = re.search(r"gres/gpu(?::\w+)?=(\d+)", text)
    nodes = whole(found.get("NumNodes", "").split("-")[0])
    return _slurm_job(
        job_id=found.get("JobId"),
        name=found.get("JobName"),
        node_list=found.get("NodeList"),
        tasks=whole(found.get("NumTasks")),
        per_node=per_node,
        gpus_per_node=int(gpus[1]) // nodes if gpus and nodes else None,
        start=found.get("StartTime"),
        end=found.get("EndTime"),
    )


def _slurm_json(text: str) -> JobDescription | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    jobs = content.get("jobs") if isinstance(content, dict) else None
    if not isinstance(jobs, list) or not jobs or not isinstance(jobs[0], dict):
        return None
    job = jobs[0]
    if "job_id" not in job or not ({"nodes", "job_resources"} & set(job)):
        return None
    time = job["time"] if isinstance(job.get("time"), dict) else {}
    node_count = _number(job.get("node_count") or job.get("allocation_nodes"))
    listed = job.get("tres", {}) if isinstance(job.get("tres"), dict) else {}
    gpus = next(
        (
            _number(t.get("count"))
            for t in listed.get("allocated") or ()
            if isinstance(t, dict) and t.get("type") == "gres" and "gpu" in str(t.get("name"))
        ),
        None,
    )
    found = _slurm_job(
        job_id=str(job["job_id"]),
        name=job.get("name"),
        node_list=str(job.get("nodes") or ""),
        tasks=_number(job.get("tasks")),
        per_node=_number(job.get("tasks_per_node")),
        gpus_per_node=gpus // node_count if gpus and node_count else None,
        start=_time(time.get("start") or job.get("start_time")),
        end=_time(time.get("end") or job.get("end_time")),
    )
    if len(jobs) > 1:
        import msgspec

        note = f"{len(jobs)} jobs in the file: the first is used"
        return msgspec.structs.replace(found, notes=(*found.notes, note))
    return found


def _number(value: Any) -> int | None:
    return whole(value.get("number") if isinstance(value, dict) else value)


def _time(value: Any) -> str | None:
    seconds = value.get("number") if isinstance(value, dict) else value
    if not isinstance(seconds, int) or seconds <= 0 or seconds > 4e9:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _slurm_job(
    *,
    job_id: str | None,
    name: Any,
    node_list: str | None,
    tasks: int | None,
    per_node: int | None,
    gpus_per_node: int | None,
    start: str | None,
    end: str | None,
) -> JobDescription:
    hosts = list(expand_hosts(node_list or ""))
    notes = []
    if start and start not in ("Unknown", "N/A"):
        ran = f"Slurm: ran from {start}"
        notes.append(ran + (f" to {end}" if end and end != "Unknown" else ""))
    per = per_node or (tasks // len(hosts) if tasks and hosts and tasks % len(hosts) == 0 else None)
    if gpus_per_node and (per is None or per == 1) and gpus_per_node > 1:
        # torchrun: one task a node starts one process a GPU.
        per = gpus_per_node
        notes.append(f"ranks placed as one a GPU, {per} a node in the order of the host list")
    ranks = []
    if hosts and per and len(hosts) * per <= MAX_HOSTS:
        ranks = [{"rank": i * per + k, "host": h} for i, h in enumerate(hosts) for k in range(per)]
    return described(
        {"hardware": {"gpus_per_node": gpus_per_node}},
        tuple(notes),
        id=str(job_id)[:100] if job_id else None,
        name=str(name)[:200] if name else None,
        world_size=len(ranks) or None,
        rank=ranks or None,
    )


def expand_hosts(text: str) -> Iterator[str]:
    """``gpu[01-03,7],login1`` -> gpu01 gpu02 gpu03 gpu7 login1."""
    count = 0
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        for host in _expanded(part.strip()):
            count += 1
            if count > MAX_HOSTS:
                return
            if host and host not in ("(null)", "None"):
                yield host


def _expanded(text: str) -> Iterator[str]:
    match = re.search(r"\[([^\]]*)\]", text)
    if match is None:
        yield text
        return
    before, after = text[: match.start()], text[match.end() :]
    for item in match[1].split(","):
        low, _, high = item.partition("-")
        numbers = range(int(low), int(high) + 1) if high.isdecimal() and low.isdecimal() else None
        if numbers is not None and len(numbers) > MAX_HOSTS:
            return
        names = [item] if numbers is None else [str(n).zfill(len(low)) for n in numbers]
        for name in names:
            for rest in _expanded(after):
                yield before + name + rest


# --- Kubernetes -----------------------------------------------------------------------------------

_NIC_RESOURCES = re.compile(r"efa|rdma|hca|roce|infiniband|mellanox", re.IGNORECASE)
_ENV = re.compile(r"(NCCL|FI|UCX)_[A-Z0-9_]+")


def kubernetes(text: str) -> JobDescription | None:
    """Pods, jobs and training operators' objects: GPUs and NICs a pod, how many pods, NCCL."""
    objects = _documents(text)
    if objects is None:
        return None
    notes: list[str] = []
    per_pod = nics = None
    pods = 0
    name = None
    products: set[str | None] = set()
    for one, templates in ((o, list(_pod_specs(o, 1))) for o in objects):
        for spec, replicas in templates:
            gpus, interfaces = _resources(spec)
            if not gpus:
                continue
            per_pod, pods = gpus, pods + replicas
            nics = interfaces if nics is None else nics
            products.add(_product(spec))
            name = name or (one.get("metadata") or {}).get("name")
            notes += _environment(spec)
    if per_pod is None:
        return None
    notes.append(
        f"{pods} pod{'s' * (pods != 1)} of {per_pod} GPU{'s' * (per_pod != 1)}: GPUs of different "
        "pods are taken to reach each other over the network only"
    )
    return described(
        {
            "hardware": {
                "gpu": products.pop() if len(products) == 1 else None,
                "gpus_per_node": per_pod,
                "nvlink_domain": per_pod,
                "nics_per_node": nics or None,
            }
        },
        tuple(dict.fromkeys(notes)),
        world_size=pods * per_pod,
        name=str(name)[:200] if name else None,
    )


def _documents(text: str) -> list[dict[str, Any]] | None:
    """Kubernetes objects in a JSON or YAML text; None where there is none."""
    found: list[Any]
    if text.lstrip()[:1] == "{":
        try:
            found = [json.loads(text)]
        except (ValueError, RecursionError):
            return None
    elif re.search(r"(?m)^apiVersion:", text) and re.search(r"(?m)^kind:", text):
        import yaml

        try:
            found = list(yaml.load_all(text, Loader=_plain_loader()))
        except (yaml.YAMLError, RecursionError):
            return None
    else:
        return None
    objects = [o for o in found if isinstance(o, dict)]
    listed = [i for o in objects if o.get("kind") == "List" for i in o.get("items") or ()]
    objects = [o for o in (*objects, *listed) if isinstance(o, dict)]
    return objects if any("apiVersion" in o and "kind" in o for o in objects) else None


def _plain_loader() -> type[yaml.SafeLoader]:
    """Of plain values. Aliases are refused: a few lines of them make a tree of billions."""
    import yaml

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("aliases are not read")
            return super().compose_node(parent, index)

    return Plain


def _pod_specs(value: Any, replicas: int, depth: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """(pod spec, how many) anywhere in an object: operators nest their templates differently."""
    if depth > 12:
        return
    if isinstance(value, list):
        for item in value:
            yield from _pod_specs(item, replicas, depth + 1)
    if not isinstance(value, dict):
        return
    if isinstance(value.get("containers"), list):
        yield value, replicas
        return
    for key in ("replicas", "completions", "parallelism", "numNodes"):
        count = whole(value.get(key))
        if count is not None:
            replicas *= count
            break
    for item in value.values():
        yield from _pod_specs(item, replicas, depth + 1)


def _resources(spec: dict[str, Any]) -> tuple[int, int]:
    gpus = nics = 0
    for container in spec["containers"]:
        if not isinstance(container, dict):
            continue
        resources = container.get("resources") or {}
        limits = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        for name, value in limits.items():
            count = whole(value) or 0
            if str(name).endswith("/gpu"):
                gpus += count
            elif _NIC_RESOURCES.search(str(name)):
                nics += count
    return gpus, nics


_PRODUCT = "nvidia.com/gpu.product"
"""The node label of NVIDIA's feature discovery: NVIDIA-A100-SXM4-80GB, say."""


def _product(spec: dict[str, Any]) -> str | None:
    """The GPU that the pod asks its node for, by selector or required affinity."""
    selector = spec.get("nodeSelector")
    if isinstance(selector, dict) and _PRODUCT in selector:
        return str(selector[_PRODUCT])[:100]
    return next(_required_products(spec.get("affinity")), None)


def _required_products(value: Any, depth: int = 0) -> Iterator[str]:
    """The one value of each expression ``key In [value]`` below nodes that are required."""
    if depth > 6:
        return
    if isinstance(value, list):
        for item in value:
            yield from _required_products(item, depth + 1)
    if not isinstance(value, dict):
        return
    match value:
        case {"key": str(key), "operator": "In", "values": [one]} if key == _PRODUCT:
            yield str(one)[:100]
    for key, item in value.items():
        if not str(key).startswith("preferred"):
            yield from _required_products(item, depth + 1)


def _environment(spec: dict[str, Any]) -> Iterator[str]:
    for container in spec["containers"]:
        for entry in (container.get("env") if isinstance(container, dict) else None) or ():
            name = str(entry.get("name", "")) if isinstance(entry, dict) else ""
            value = str(entry.get("value", "")) if isinstance(entry, dict) else ""
            # Only names of transports: an environment may hold secrets.
            if _ENV.fullmatch(name) and re.fullmatch(r"[\w./:^,=-]{0,60}", value):
                yield f"{name}={value}"

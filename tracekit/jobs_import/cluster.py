"""Where a job ran: Slurm jobs and Kubernetes objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from tracekit.job import JobDescription
from tracekit.jobs_import.values import described, items, mapping, whole

if TYPE_CHECKING:
    import yaml

MAX_HOSTS = 100_000
"""A host list that names more is not expanded: brackets multiply. Slurm's own limit is 64,000."""
MAX_BRACKETS = 4
"""Pairs of brackets in one name: Slurm writes two at most."""
MAX_DIGITS = 9
"""Digits of a number in a host's name."""
MAX_PODS = 1_000_000
"""Pods that are believed: replicas multiply, and the largest clusters have 100,000 nodes."""
MAX_NOTES = 100
"""Notes of one file: a manifest of thousands of pods repeats the same few."""

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)")


def slurm(text: str) -> JobDescription | None:
    """``scontrol show job``, ``scontrol show job --json`` or ``sacct --json``."""
    if text.lstrip()[:1] == "{":
        return _slurm_json(text)
    if not re.search(r"(?m)^[ \t]*+JobId=\d+", text):
        return None
    fields = {m[1]: m[2] for m in _FIELD.finditer(text)}
    per_node = whole(fields.get("NtasksPerN:B:S:C", "").split(":")[0])
    gpus = re.search(r"gres/gpu(?::\w+)?=(\d+)", text)
    nodes = whole(fields.get("NumNodes", "").split("-")[0])
    return _slurm_job(
        job_id=fields.get("JobId"),
        name=fields.get("JobName"),
        node_list=fields.get("NodeList"),
        tasks=whole(fields.get("NumTasks")),
        per_node=per_node,
        gpus_per_node=_share(whole(gpus[1]) if gpus else None, nodes),
        start=fields.get("StartTime"),
        end=fields.get("EndTime"),
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
            for t in items(listed.get("allocated"))
            if isinstance(t, dict) and t.get("type") == "gres" and "gpu" in str(t.get("name"))
        ),
        None,
    )
    described = _slurm_job(
        job_id=str(job["job_id"]),
        name=job.get("name"),
        node_list=str(job.get("nodes") or ""),
        tasks=_number(job.get("tasks")),
        per_node=_number(job.get("tasks_per_node")),
        gpus_per_node=_share(gpus, node_count),
        start=_time(time.get("start") or job.get("start_time")),
        end=_time(time.get("end") or job.get("end_time")),
    )
    if len(jobs) > 1:
        import msgspec

        note = f"{len(jobs)} jobs in the file: the first is used"
        return msgspec.structs.replace(described, notes=(*described.notes, note))
    return described


def _share(gpus: int | None, nodes: int | None) -> int | None:
    return gpus // nodes or None if gpus and nodes else None


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
    if len(hosts) > MAX_HOSTS:
        notes.append(f"the list of nodes names more than {MAX_HOSTS:,} hosts: no rank is placed")
        hosts = []
    if start and start not in ("Unknown", "N/A"):
        ran = f"Slurm: ran from {start}"
        notes.append(ran + (f" to {end}" if end and end != "Unknown" else ""))
    per = per_node or (tasks // len(hosts) if tasks and hosts and tasks % len(hosts) == 0 else None)
    if gpus_per_node and (per is None or per == 1) and gpus_per_node > 1:
        # torchrun: one task a node starts one process a GPU.
        per = gpus_per_node
        notes.append(f"ranks placed as one a GPU, {per} a node in the order of the host list")
    ranks = []
    if hosts and per and len(hosts) * per > MAX_HOSTS:
        notes.append(f"more than {MAX_HOSTS:,} ranks: none is placed on its host")
    elif hosts and per:
        ranks = [{"rank": i * per + k, "host": h} for i, h in enumerate(hosts) for k in range(per)]
    return described(
        {"hardware": {"gpus_per_node": gpus_per_node}},
        tuple(notes),
        id=str(job_id)[:100] if job_id else None,
        name=str(name)[:200] if name else None,
        world_size=len(ranks) or None,
        rank=ranks or None,
    )


_HOSTS = re.compile(r"[^,\[]++(?:\[[^\[\]]*+\][^,\[]*+)*+")


def expand_hosts(text: str) -> Iterator[str]:
    """``gpu[01-03,7],login1`` -> gpu01 gpu02 gpu03 gpu7 login1; one more than MAX_HOSTS at most."""
    names = (host for part in _HOSTS.findall(text) for host in _expanded(part.strip()))
    for host in islice(names, MAX_HOSTS + 1):
        if host and host not in ("(null)", "None"):
            yield host


def _expanded(text: str) -> Iterator[str]:
    match = re.search(r"\[([^\[\]]*+)\]", text)
    if match is None or text.count("[") > MAX_BRACKETS:
        yield text
        return
    before, after = text[: match.start()], text[match.end() :]
    for item in match[1].split(","):
        for name in _numbered(item):
            for rest in _expanded(after):
                yield before + name + rest


def _numbered(item: str) -> Iterator[str]:
    """The numbers of ``01-03``, one at a time; the item itself where it is no range."""
    low, _, high = item.partition("-")
    if not (low.isdecimal() and high.isdecimal() and max(len(low), len(high)) <= MAX_DIGITS):
        yield item
        return
    for number in range(int(low), int(high) + 1):
        yield str(number).zfill(len(low))


# --- Kubernetes -----------------------------------------------------------------------------------

_NIC_RESOURCES = re.compile(r"efa|rdma|hca|roce|infiniband|mellanox", re.IGNORECASE)
_TRANSPORTS = frozenset(
    """
    FI_PROVIDER FI_EFA_USE_DEVICE_RDMA FI_EFA_FORK_SAFE FI_EFA_ENABLE_SHM_TRANSFER
    FI_EFA_SET_CUDA_SYNC_MEMOPS FI_LOG_LEVEL FI_CXI_ATS FI_CXI_DEFAULT_CQ_SIZE
    FI_CXI_DISABLE_HOST_REGISTER FI_CXI_RX_MATCH_MODE FI_MR_CACHE_MONITOR
    UCX_TLS UCX_NET_DEVICES UCX_IB_GID_INDEX UCX_IB_TRAFFIC_CLASS UCX_IB_SL UCX_RNDV_SCHEME
    UCX_RNDV_THRESH UCX_MAX_RNDV_RAILS UCX_MEMTYPE_CACHE UCX_LOG_LEVEL
    """.split()  # noqa: SIM905  # a list that is read by eye
)
"""Settings of libfabric and UCX whose values are kept, beside those of NCCL's list: what begins
with NCCL_ or UCX_ may hold a password as well (NCCL_AUTH_TOKEN)."""


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
    for resource, templates in ((o, list(_pod_specs(o, 1))) for o in objects):
        for spec, replicas in templates:
            gpus, interfaces = _resources(spec)
            if not gpus:
                continue
            per_pod, pods = gpus, pods + replicas
            nics = interfaces if nics is None else nics
            products.add(_product(spec))
            name = name or mapping(resource.get("metadata")).get("name")
            notes += islice(_environment(spec), MAX_NOTES)
            notes = list(dict.fromkeys(notes))[:MAX_NOTES]
    if per_pod is None:
        return None
    if pods > MAX_PODS:
        notes.append(f"more than {MAX_PODS:,} pods by its replicas: their number is not believed")
        pods = 0
    how_many = f"{pods} pod{'s' * (pods != 1)}" if pods else "pods"
    notes.append(
        f"{how_many} of {per_pod} GPU{'s' * (per_pod != 1)}: GPUs of different "
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
        world_size=whole(pods * per_pod),
        name=str(name)[:200] if name else None,
    )


def _documents(text: str) -> list[dict[str, Any]] | None:
    """Kubernetes objects in a JSON or YAML text; None where there is none."""
    documents: list[Any]
    if text.lstrip()[:1] == "{":
        try:
            documents = [json.loads(text)]
        except (ValueError, RecursionError):
            return None
    elif re.search(r"(?m)^apiVersion:", text) and re.search(r"(?m)^kind:", text):
        import yaml

        try:
            documents = list(yaml.load_all(text, Loader=_plain_loader()))
        except (yaml.YAMLError, RecursionError, ValueError):  # a character that YAML cannot hold
            return None
    else:
        return None
    objects = [o for o in documents if isinstance(o, dict)]
    listed = [i for o in objects if o.get("kind") == "List" for i in items(o.get("items"))]
    objects = [o for o in (*objects, *listed) if isinstance(o, dict)]
    return objects if any("apiVersion" in o and "kind" in o for o in objects) else None


_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{word}" for word in ("str", "int", "float", "bool", "null", "map", "seq")
)


def _plain_loader() -> type[yaml.BaseLoader]:
    """Of texts, lists and mappings: no date, number or tag is made of what a stranger wrote.

    Aliases are refused: a few lines of them make a tree of billions.
    """
    import yaml

    class Plain(yaml.BaseLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("aliases are not read")
            event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML has no types here
            tag = getattr(event, "tag", None)
            if tag is not None and tag not in _PLAIN_TAGS:
                raise yaml.YAMLError("tags of programs are not read")
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
        resources = mapping(container.get("resources"))
        limits = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
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
    from tracekit.ingest.nccl.messages import ENV_ALLOWED  # patterns that take 20 ms to make

    for container in spec["containers"]:
        for entry in items(mapping(container).get("env")):
            name, value = (str(mapping(entry).get(key, "")) for key in ("name", "value"))
            # Only settings of transports that are known: an environment may hold secrets.
            if name in ENV_ALLOWED | _TRANSPORTS and re.fullmatch(r"[\w./:^,=-]{0,60}", value):
                yield f"{name}={value}"

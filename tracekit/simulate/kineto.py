"""Writes simulated steps as PyTorch profiler traces, one gzip file a rank, a step at a time.

Three styles: ``kineto`` (2026: nanosecond fractions on a base, collectives with their metadata),
``kineto-old`` (early 2024: whole microseconds since the epoch, no metadata of collectives) and
``gloo`` (no device: collectives are ranges on a run-loop thread).
"""

from __future__ import annotations

import json
import zlib
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from tracekit.simulate import program as p
from tracekit.simulate.job import Plan, StepRecord
from tracekit.simulate.model import STREAMS
from tracekit.simulate.records import Operation

STYLES = ("kineto", "kineto-old", "gloo")
"""Of this writer."""
BASE_INTERVAL_NS = 7_889_238 * 10**9
MAX_LISTED_RANKS = 30
"""Kineto cuts the list of a group's ranks there."""
MAX_HEADS = 4096
"""Beginnings of lines that are kept: names of steps are without end."""
_COMPRESS_LEVEL = 1
_WINDOW_BITS = 14
"""A 16 KB window: a thousand files are open at once, each with its compressor."""

_META_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
    "broadcast": "broadcast",
}
OPERATORS = {
    "all_reduce": "c10d::allreduce_",
    "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_to_all": "c10d::alltoall_base_",
    "broadcast": "c10d::broadcast_",
    "send": "c10d::send",
    "recv": "c10d::recv_",
}
"""PyTorch's operator that calls a collective."""
_KERNELS = {
    "all_reduce": "AllReduce_Sum_{}_RING_LL",
    "all_gather": "AllGather_RING_LL",
    "reduce_scatter": "ReduceScatter_Sum_{}_RING_LL",
    "all_to_all": "SendRecv",
    "broadcast": "Broadcast_RING_LL",
    "send": "SendRecv",
    "recv": "SendRecv",
}
_OLD_KERNELS = {
    "all_reduce": "AllReduce_RING_LL_Sum_{}",
    "all_gather": "AllGather_RING_LL_Sum_int8_t",
    "reduce_scatter": "ReduceScatter_RING_LL_Sum_{}",
    "all_to_all": "SendRecv",
    "broadcast": "Broadcast_RING_LL_Sum_int8_t",
    "send": "SendRecv",
    "recv": "SendRecv",
}
_SHORT = {
    "BFloat16": ("bf16", "__nv_bfloat16", "c10::BFloat16"),
    "Float": ("f32", "float", "float"),
}


class HostClock(Struct, frozen=True):
    """How a host's clock reads the true time."""

    offset_ns: int = 0
    drift_ppb: int = 0
    """Nanoseconds gained in a second."""

    def read(self, true_ns: int) -> int:
        """What it shows."""
        return true_ns + self.offset_ns + true_ns * self.drift_ppb // 10**9


class GroupNames:
    """Names of process groups, equal on every rank."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._ids: dict[tuple[str, tuple[int, ...]], int] = {}
        for role in plan.layout.roles:
            for rank in range(plan.layout.world_size):
                members = plan.layout.group(rank, role)
                if len(members) > 1 or role == "world":
                    self._ids.setdefault((role, members), len(self._ids))

    def name(self, role: str, members: tuple[int, ...]) -> str:
        """The ``Process Group Name``."""
        return str(self._ids.get((role, members), 0))

    @property
    def count(self) -> int:
        """Groups of the job."""
        return len(self._ids)

    def config(self, rank: int) -> list[dict[str, Any]]:
        """``pg_config``: the groups that a rank belongs to."""
        layout = self.plan.layout
        groups = []
        for role in layout.roles:
            members = layout.group(rank, role)
            if (role, members) in self._ids:
                groups.append(
                    {
                        "pg_name": self.name(role, members),
                        "pg_desc": layout.description(role),
                        "backend_config": "cuda:nccl" if self.plan.host.is_device else "cpu:gloo",
                        "pg_size": len(members),
                        "ranks": list(members),
                    }
                )
        return groups


class RankWriter:
    """One rank's trace file."""

    def __init__(
        self, path: Path, plan: Plan, rank: int, style: str, names: GroupNames,
        clock: HostClock, epoch_ns: int, host_name: str,
    ) -> None:  # fmt: skip
        self.path = path
        self.plan = plan
        self.rank = rank
        self.style = style
        self.names = names
        self.clock = clock
        self.epoch_ns = epoch_ns
        self.base_ns = (
            epoch_ns // BASE_INTERVAL_NS * BASE_INTERVAL_NS if style != "kineto-old" else 0
        )
        self.device = plan.topology.local(rank)
        self.pid = 20_000 + rank
        self.threads = {p.MAIN_THREAD: self.pid, p.AUTOGRAD_THREAD: self.pid + 40_000}
        self._hosts = {thread: _place(self.pid, tid) for thread, tid in self.threads.items()}
        self._zero_ns = epoch_ns + clock.offset_ns - self.base_ns
        self._drift_ppb = clock.drift_ppb
        self.span: list[int] = []
        # One gzip member with no time in its header: the same job makes the same bytes.
        self._pack = zlib.compressobj(_COMPRESS_LEVEL, zlib.DEFLATED, -_WINDOW_BITS, 7)
        self._crc = 0
        self._size = 0
        self._is_first = True
        self._prefixes: dict[Any, str] = {}
        path.write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff")
        self._write(self._header(host_name))

    # --- bytes ---------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        data = text.encode()
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        with self.path.open("ab") as stream:
            stream.write(self._pack.compress(data))

    def _events(self, lines: list[str]) -> None:
        if not lines:
            return
        text = ",\n".join(lines)
        self._write(text if self._is_first else ",\n" + text)
        self._is_first = False

    def close(self, silent_ns: int = 0) -> None:
        """The end of the file, and of a window in which nothing happened for so long."""
        if self.span:
            lo, hi = min(self.span) - 500_000, max(self.span) + 500_000 + silent_ns
            start, dur = self._us(self._shown(lo)), self._us(hi - lo)
            self._events(
                [
                    f'{{"ph": "X", "cat": "Trace", "ts": {start}, "dur": {dur}, '
                    f'"pid": "Spans", "tid": "PyTorch Profiler", '
                    f'"name": "PyTorch Profiler (0)", "args": {{"Op count": 0}}}}'
                ]
            )
        self._write(f'\n], "traceName": "/traces/rank{self.rank}.pt.trace.json"}}\n')
        with self.path.open("ab") as stream:
            stream.write(self._pack.flush())
            stream.write(self._crc.to_bytes(4, "little"))
            stream.write((self._size & 0xFFFFFFFF).to_bytes(4, "little"))

    # --- the keys before the events ------------------------------------------------------------

    def _header(self, host_name: str) -> str:
        plan, gpu = self.plan, self.plan.topology.gpu
        is_device = self.style != "gloo"
        backend = "nccl" if is_device else "gloo"
        info: dict[str, Any] = {
            "backend": backend, "rank": self.rank, "world_size": plan.layout.world_size,
        }  # fmt: skip
        if self.style != "kineto-old":
            info["pg_count"] = self.names.count
            info["pg_config"] = self.names.config(self.rank)
            if is_device:
                info["nccl_version"] = "2.27.5"
        devices = [
            {
                "id": i, "name": gpu.name, "totalGlobalMem": gpu.memory_bytes,
                "computeMajor": gpu.compute_major, "computeMinor": 0, "maxThreadsPerBlock": 1024,
                "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536, "warpSize": 32,
                "sharedMemPerBlock": 49152, "numSms": gpu.sm_count,
                "regsPerMultiprocessor": 65536,
            }
            for i in range(plan.topology.gpus_per_host)
        ]  # fmt: skip
        keys: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": devices if is_device else [],
            "distributedInfo": info,
            "record_shapes": 1,
        }
        if self.style != "kineto-old":
            keys["trace_id"] = (
                f"{zlib.crc32(plan.name.encode()):08X}{plan.seed:08X}{self.rank:016X}"
            )
            keys["host_name"] = host_name
            keys["displayTimeUnit"] = "ms"
            keys["baseTimeNanoseconds"] = self.base_ns
        if is_device:
            keys["cuda_runtime_version"] = 12090
        return json.dumps(keys)[:-1] + ', "traceEvents": [\n'

    # --- times ---------------------------------------------------------------------------------

    def _shown(self, true_ns: int) -> int:
        """What the file's clock shows, from its base on."""
        return self._zero_ns + true_ns + true_ns * self._drift_ppb // 10**9

    def _us(self, ns: int) -> str:
        if self.style == "kineto-old":
            return str(ns // 1000)
        return f"{ns // 1000}.{ns % 1000:03d}"

    def _row(self, head: str, place: str, start: int, dur: int, args: str) -> str:
        # The written duration is of the host's clock too, so that ends stay in order.
        begin = self._zero_ns + start + start * self._drift_ppb // 10**9
        start += dur
        took = self._zero_ns + start + start * self._drift_ppb // 10**9 - begin
        if self.style == "kineto-old":
            return f'{head}{place}{begin // 1000}, "dur": {took // 1000}, "args": {{{args}}}}}'
        return (
            f"{head}{place}{begin // 1000}.{begin % 1000:03d}, "
            f'"dur": {took // 1000}.{took % 1000:03d}, "args": {{{args}}}}}'
        )

    # --- events --------------------------------------------------------------------------------

    def add(self, record: StepRecord) -> None:
        """The events of one step."""
        lines: list[str] = []
        for item in record.host:
            self._host(item, lines)
        for operation in record.operations:
            self._operation(operation, lines)
        self.span += [record.start_ns, record.end_ns]
        self.span = [min(self.span), max(self.span)]
        self._events(lines)

    def _host(self, item: tuple[Any, ...], lines: list[str]) -> None:
        kind, name, start, dur, thread, external, more = item
        place = self._hosts[thread]
        if kind in ("collective", "message"):
            self._call(kind, name, start, dur, place, external, more, lines)
            return
        if kind == "cuda_runtime":
            args = f'"cbid": 131, "correlation": {external}'
        else:
            args = f'"External id": {external}, "Ev Idx": {external}'
        lines.append(self._row(_head(kind, name), place, start, dur, args))

    def _call(
        self, kind: str, spec: Any, start: int, dur: int, place: str, external: int,
        more: tuple[Any, ...], lines: list[str],
    ) -> None:  # fmt: skip
        sequence, size, routing = more
        op = spec.op if kind == "collective" else ("send" if spec.is_send else "recv")
        part = dur // 10
        add = lines.append
        ids = f'"External id": {external}, "Ev Idx": {external}'
        add(self._row(_head("cpu_op", OPERATORS[op]), place, start, dur, ids))
        if self.style == "gloo":
            return
        ids = f'"External id": {external + 1}, "Ev Idx": {external + 1}'
        shapes = self._shapes(spec, op, size) if self.style == "kineto-old" else ""
        extra = shapes or self._meta(spec, op, size, sequence, routing)
        head = _head("cpu_op", "record_param_comms")
        add(self._row(head, place, start + part, dur - 2 * part, f"{ids}, {extra}"))
        ids = f'"External id": {external + 2}, "Ev Idx": {external + 2}'
        name = f"nccl:{op}"
        if op == "all_gather":
            name = "nccl:_all_gather_base"
        elif op == "reduce_scatter":
            name = "nccl:_reduce_scatter_base"
        args = f"{ids}, {shapes}" if shapes else ids
        head = _head("user_annotation", name)
        add(self._row(head, place, start + 2 * part, dur - 4 * part, args))

    def _shapes(self, spec: Any, op: str, size: int) -> str:
        kind = _SHORT[spec.dtype][2]
        members = self.plan.layout.group(self.rank, spec.role)
        return (
            f'"Concrete Inputs": [""], "Input type": ["{kind}"], '
            f'"Input Dims": [[{counts(spec, op, size, len(members))[0]}]]'
        )

    def _meta(
        self, spec: Any, op: str, size: int, sequence: int, routing: tuple[float, ...]
    ) -> str:
        key = (spec, size, routing)
        prefix = self._prefixes.get(key)
        if prefix is None:
            prefix = self._prefixes[key] = self._meta_text(spec, op, size, routing)
        return f'{prefix}, "Seq": {sequence}'

    def _meta_text(self, spec: Any, op: str, size: int, routing: tuple[float, ...]) -> str:
        members = self.plan.layout.group(self.rank, spec.role)
        count_in, count_out = counts(
            spec, op, size, len(self.plan.layout.group(self.rank, spec.role))
        )
        listed = ", ".join(str(r) for r in members[:MAX_LISTED_RANKS])
        if len(members) > MAX_LISTED_RANKS:
            listed += ", ..."
        stride = members[1] - members[0] if len(members) > 1 else 1
        sent = received = ""
        if op == "all_to_all":
            shares = routing or (1 / len(members),) * len(members)
            each = int(count_in * shares[members.index(self.rank)])
            sent = ", ".join(str(int(count_in * s)) for s in shares)
            received = ", ".join([str(each)] * len(members))
            count_out = each * len(members)
        name = self.names.name(spec.role, members)
        text = (
            f'"Collective name": "{_META_NAMES.get(op, op)}", "dtype": "{spec.dtype}", '
            f'"In msg nelems": {count_in}, "Out msg nelems": {count_out}, '
            f'"Group size": {len(members)}, "In split size": "[{sent}]", '
            f'"Out split size": "[{received}]", "Process Group Name": "{name}", '
            f'"Process Group Description": "{self.plan.layout.description(spec.role)}", '
            f'"Process Group Ranks": "[{listed}]", "Global rank start": {members[0]}, '
            f'"Global rank stride": {stride}, "Rank": {members.index(self.rank)}, '
            f'"Comms Id": {zlib.crc32(str((spec.role, members)).encode())}, '
            f'"Is asynchronized op": true'
        )
        if isinstance(spec, p.Message):
            peer = members[(members.index(self.rank) + spec.peer_offset) % len(members)]
            src, dst = (self.rank, peer) if spec.is_send else (peer, self.rank)
            text += f', "Src Rank": {src}, "Dst Rank": {dst}'
        return text

    def _operation(self, operation: Operation, lines: list[str]) -> None:
        spec = operation.spec
        external = operation.external
        if self.style == "gloo":
            self._gloo(operation, lines)
            return
        if operation.transfer is not None:
            external += 2
        is_copy = operation.transfer is None and spec.kind == "memcpy"
        call = "cudaMemcpyAsync" if is_copy else "cudaLaunchKernel"
        if operation.transfer is not None and self.style == "kineto":
            call = "cudaLaunchKernelExC"
        correlation = operation.correlation
        lines.append(
            self._row(
                _head("cuda_runtime", call),
                self._hosts[operation.thread],
                operation.launch,
                operation.launch_dur,
                f'"External id": {external}, "cbid": 211, "correlation": {correlation}',
            )
        )
        if operation.end < 0:
            return  # it never ended, so the device never reported it
        args = (
            f'"External id": {external}, "queued": 0, "device": {self.device}, "context": 1, '
            f'"stream": {operation.stream}, "correlation": {correlation}'
        )
        category = "kernel"
        if operation.transfer is not None:
            op = operation_name(spec)
            name = self._kernel_name(spec, op)
            args += ', "grid": [24, 1, 1], "block": [544, 1, 1]'
            if self.style == "kineto":
                sequence = operation.sequence or 0
                meta = self._meta(spec, op, operation.size_bytes, sequence, operation.routing)
                args = f"{args}, {meta}"
        elif is_copy:
            name, category = spec.name, "gpu_memcpy"
            args += f', "bytes": {spec.size_bytes}'
        else:
            name = spec.name
            args += _geometry(spec.grid, spec.block)
        lines.append(
            self._row(
                _head(category, name),
                _place(self.device, operation.stream),
                operation.start,
                operation.end - operation.start,
                args,
            )
        )

    def _kernel_name(self, spec: Any, op: str) -> str:
        if self.style == "kineto-old":
            shown = _OLD_KERNELS[op].format(_SHORT[spec.dtype][1])
            return f"ncclKernel_{shown}(ncclDevComm*, unsigned long, ncclWork*)"
        return kernel_name(spec, op)

    def _gloo(self, operation: Operation, lines: list[str]) -> None:
        spec = operation.spec
        if operation.end < 0 or operation.transfer is None:
            return
        op = operation_name(spec)
        thread = self.pid + 50_000 + STREAMS.get(spec.role, 60)
        if isinstance(spec, p.Message):
            thread = self.pid + 50_000 + operation.stream
        shapes = self._shapes(spec, op, operation.size_bytes)
        args = f'"External id": {operation.external + 1}, {shapes}'
        lines.append(
            self._row(
                _head("user_annotation", f"gloo:{op}"),
                _place(self.pid, thread),
                operation.start,
                operation.end - operation.start,
                args,
            )
        )


def operation_name(spec: Any) -> str:
    """all_reduce, send, ... of a collective or a message."""
    if isinstance(spec, p.Message):
        return "send" if spec.is_send else "recv"
    name: str = spec.op
    return name


def kernel_name(spec: Any, op: str) -> str:
    """Of NCCL 2.19 and later."""
    short = _SHORT[spec.dtype][0]
    return f"ncclDevKernel_{_KERNELS[op].format(short)}(ncclDevKernelArgsStorage<4096ul>)"


def counts(spec: Any, op: str, size: int, members_count: int) -> tuple[int, int]:
    """Elements in and out of one rank."""
    elements = size // p.ELEMENT_BYTES[spec.dtype]
    if op not in ("all_gather", "reduce_scatter"):
        return elements, elements
    share = elements // members_count
    return (share, elements) if op == "all_gather" else (elements, share)


@lru_cache(MAX_HEADS)
def _head(category: str, name: str) -> str:
    return f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, '


@cache
def _place(process: int, thread: int) -> str:
    return f'"pid": {process}, "tid": {thread}, "ts": '


@cache
def _geometry(grid: tuple[int, int, int], block: tuple[int, int, int]) -> str:
    return f', "grid": {list(grid)}, "block": {list(block)}'

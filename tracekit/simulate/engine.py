"""The simulation itself: hosts that run programs, streams that run kernels, members that meet.

An operation starts when it was launched, when the one before it on its stream has ended and when
what its stream was told to wait for has ended. A collective ends, for every member, one transfer
after its last member has started. Nothing else makes anybody wait: bubbles, overlap and lateness
are what these three sentences lead to.

All times are whole nanoseconds of one true clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracekit.simulate import program as p
from tracekit.simulate.network import LinkState, Network

UNKNOWN = -1


@dataclass(frozen=True)
class HostModel:
    """What the host's own work costs."""

    operator_ns: float = 9_000.0
    """An operator with one launch."""
    communication_ns: float = 30_000.0
    launch_latency_ns: int = 3_000
    """From the launch call to the earliest start on the device."""
    kernel_gap_ns: int = 1_000
    """Between two kernels of a stream."""
    sync_ns: float = 10_000.0
    """A synchronising call beside its waiting."""
    is_device: bool = True
    """Without a device, kernels run on the host's thread (gloo)."""


ORDINARY_HOST = HostModel()
NO_HOST_COST = HostModel(0.0, 0.0, 0, 0, 0.0)


@dataclass
class Conditions:
    """What is special about one rank in one step."""

    compute_scale: float = 1.0
    host_scale: float = 1.0
    microbatch_scale: Sequence[float] = ()
    expert_scale: float = 1.0
    routing: tuple[float, ...] = ()
    """Shares of the tokens that the members of the rank's expert group get; empty: equal."""
    hooks: dict[str, p.Program] = field(default_factory=dict)
    """Instructions to run at a mark."""
    phases: dict[str, float] = field(default_factory=dict)
    """Factor on compute from a mark on."""
    skip_collective: str | None = None
    """Role whose next collective this rank never joins: it stops there."""
    change_collective: str | None = None
    """Role whose next collective this rank calls with another size."""


class Operation:
    """One kernel, copy or communication of one rank."""

    __slots__ = (
        "correlation", "dur", "end", "external", "launch", "launch_dur", "pending", "ready",
        "routing", "sequence", "size_bytes", "spec", "start", "stream", "thread", "transfer",
        "waiters",
    )  # fmt: skip

    def __init__(self, spec: Any, stream: int, dur: int, launch: int, ready: int) -> None:
        self.spec = spec
        self.stream = stream
        self.dur = dur
        self.launch = launch
        self.launch_dur = 0
        self.ready = ready
        self.start = UNKNOWN
        self.end = UNKNOWN
        self.pending = 0
        self.waiters: list[Any] | None = None
        self.transfer: Transfer | None = None
        self.correlation = self.external = self.thread = 0
        self.sequence: int | None = None
        self.size_bytes = 0
        self.routing: tuple[float, ...] = ()


class Transfer:
    """One collective or message: its members so far."""

    __slots__ = ("dead", "latest", "lost_at", "members", "missing", "ranks", "sizes")

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.missing = len(ranks)
        self.latest = 0
        self.members: list[tuple[int, Operation]] = []
        """Who has come; empty again once it is complete, or members and transfer would hold each
        other and a step's operations would stay until a collector finds the cycle."""
        self.sizes: set[tuple[str, int]] = set()
        self.dead = False
        self.lost_at: int | None = None
        """The rank over whose NIC it timed out."""


HostRecord = tuple[str, Any, int, int, int, int, Any]
"""Kind, name or spec, start, duration, thread, external id, more."""


class Process:
    """One rank: its host threads and its streams."""

    def __init__(self, engine: Engine, rank: int) -> None:
        self.engine = engine
        self.rank = rank
        self.now = 0
        self.tails: dict[int, Operation] = {}
        self.waits: dict[int, list[Operation]] = {}
        self.slots: dict[int, Operation | None] = {}
        self.program: p.Program = []
        self.pc = 0
        self.conditions = Conditions()
        self.phase = 1.0
        self.thread = p.MAIN_THREAD
        self.open: list[tuple[str, str, int, int, int]] = []
        self.host: list[HostRecord] = []
        self.operations: list[Operation] = []
        self.calls: dict[Any, int] = {}
        self.external = 0
        self.correlation = 0
        self.blocked_on: list[Operation] = []
        self.sync: tuple[str, int, int] | None = None
        self.is_stuck = False
        self.kernel_noise: Iterator[float] = iter(())
        self.host_noise: Iterator[float] = iter(())

    def give(self, program: p.Program, conditions: Conditions) -> None:
        """The next step's program."""
        self.program = program
        self.pc = 0
        self.conditions = conditions
        self.phase = 1.0
        # What has ended by itself need not be kept: it can delay nothing any more but by its end.
        self.slots.clear()

    @property
    def is_done(self) -> bool:
        """Whether the program has been run to its end."""
        return self.pc >= len(self.program) and self.sync is None

    def run(self) -> None:
        """Go on until the program ends or the host has to wait for something unknown."""
        if self.is_stuck or not self._finish_sync():
            return
        handlers = self.engine.handlers
        while self.pc < len(self.program):
            instruction = self.program[self.pc]
            self.pc += 1
            handlers[instruction[0]](self, instruction)
            if self.sync is not None or self.is_stuck:
                return

    # --- the host ------------------------------------------------------------------------------

    def _cost(self, base: float) -> int:
        if not base:
            return 0
        return int(base * next(self.host_noise) * self.conditions.host_scale)

    def _next_external(self) -> int:
        self.external += 1
        return self.external

    def do_host(self, instruction: p.Instruction) -> None:
        """Host work of a given time that launches nothing."""
        _, name, kind, base = instruction[:4]
        cost = int(base)
        if name:
            self.host.append((kind, name, self.now, cost, self.thread, self._next_external(), None))
        self.now += cost

    def do_begin(self, instruction: p.Instruction) -> None:
        """Open a range."""
        _, name, kind = instruction
        self.open.append((kind, name, self.now, self.thread, self._next_external()))

    def do_end(self, instruction: p.Instruction) -> None:
        """Close the innermost range."""
        kind, name, start, thread, external = self.open.pop()
        self.host.append((kind, name, start, self.now - start, thread, external, None))

    def do_thread(self, instruction: p.Instruction) -> None:
        """Go on as another thread of the same rank."""
        self.thread = instruction[1]

    def do_mark(self, instruction: p.Instruction) -> None:
        """A place where faults and habits of the job come in."""
        self.phase = self.conditions.phases.get(instruction[1], self.phase)
        extra = self.conditions.hooks.get(instruction[1])
        if extra:
            self.program = self.program[: self.pc] + extra + self.program[self.pc :]

    # --- waiting -------------------------------------------------------------------------------

    def do_sync(self, instruction: p.Instruction) -> None:
        """The host waits for a stream (or all) to run empty."""
        _, name, stream = instruction
        tails = list(self.tails.values()) if stream < 0 else [self.tails.get(stream)]
        self._block(
            name, [t for t in tails if t is not None], self._cost(self.engine.model.sync_ns)
        )

    def _block(self, name: str, operations: list[Operation], cost: int) -> None:
        self.blocked_on = operations
        self.sync = (name, self.now, cost)
        self._finish_sync()

    def _finish_sync(self) -> bool:
        if self.sync is None:
            return True
        for operation in self.blocked_on:
            if operation.end < 0:
                _add_waiter(operation, self)
                return False
        name, start, cost = self.sync
        if not self.engine.model.is_device:
            name = ""  # a host has no CUDA call to wait in
        end = max([start, *(o.end for o in self.blocked_on)]) + cost
        if name:
            self.correlation += 1
            self.host.append(
                ("cuda_runtime", name, start, end - start, self.thread, self.correlation, None)
            )
        self.now = end
        self.sync = None
        self.blocked_on = []
        return True

    # --- streams -------------------------------------------------------------------------------

    def do_wait(self, instruction: p.Instruction) -> None:
        """A stream waits for all that another was given."""
        _, stream, other = instruction
        tail = self.tails.get(other)
        if tail is not None:
            self.waits.setdefault(stream, []).append(tail)

    def do_wait_slot(self, instruction: p.Instruction) -> None:
        """A stream waits for what was recorded in a slot."""
        _, stream, slot = instruction
        operation = self.slots.get(slot)
        if operation is not None:
            self.waits.setdefault(stream, []).append(operation)

    def do_record(self, instruction: p.Instruction) -> None:
        """Remember what a stream was given so far."""
        _, slot, stream = instruction
        self.slots[slot] = self.tails.get(stream)

    def do_kernel(self, instruction: p.Instruction) -> None:
        """Launch a kernel."""
        _, spec, stream, microbatch = instruction
        conditions = self.conditions
        scale = conditions.compute_scale * self.phase
        if microbatch >= 0 and conditions.microbatch_scale:
            scale *= conditions.microbatch_scale[microbatch]
        if spec.is_expert:
            scale *= conditions.expert_scale
        if not self.engine.model.is_device:
            self._compute_on_host(spec, stream, scale)
            return
        dur = int(spec.dur_ns * next(self.kernel_noise) * scale)
        start = self.now
        cost = self._cost(self.engine.model.operator_ns)
        external = self._next_external()
        self.host.append(("cpu_op", spec.operator, start, cost, self.thread, external, spec))
        self.now += cost
        launch = start + cost // 3
        ready = launch + self.engine.model.launch_latency_ns
        self._issue(Operation(spec, stream, dur, launch, ready), cost, external)

    def _compute_on_host(self, spec: p.Kernel, stream: int, scale: float) -> None:
        waiting = [o for o in self.waits.get(stream, ()) if o.end < 0]
        if waiting:
            self.pc -= 1  # the same again once they have ended
            self._block("", waiting, 0)
            return
        dur = int(spec.dur_ns * next(self.kernel_noise) * scale)
        ends = [o.end for o in self.waits.pop(stream, ())]
        start = max([self.now, *ends])
        self.host.append(
            ("cpu_op", spec.operator, start, dur, self.thread, self._next_external(), spec)
        )
        self.now = start + dur
        done = Operation(spec, stream, dur, start, start)
        done.start, done.end = start, self.now
        self.tails[stream] = done

    def do_collective(self, instruction: p.Instruction) -> None:
        """Launch one's part of a collective; its stream waits for what compute was given."""
        spec: p.Collective = instruction[1]
        ranks = self.engine.groups_of(self.rank, spec.role)
        if len(ranks) < 2:
            return
        if self.conditions.skip_collective == spec.role:
            self.is_stuck = True
            return
        key = (spec.role, ranks)
        size = spec.total_bytes
        if self.conditions.change_collective == spec.role:
            self.conditions.change_collective = None
            size = size * 3 // 4
        routing = self.conditions.routing if spec.is_expert else ()
        self._communicate(spec, key, ranks, (spec.op, size), spec.stream, routing)

    def do_message(self, instruction: p.Instruction) -> None:
        """Launch one's half of a send/receive pair."""
        spec: p.Message = instruction[1]
        members = self.engine.groups_of(self.rank, spec.role)
        peer = members[(members.index(self.rank) + spec.peer_offset) % len(members)]
        src, dst = (self.rank, peer) if spec.is_send else (peer, self.rank)
        key = (spec.channel, src, dst)
        self._communicate(spec, key, (src, dst), ("send_recv", spec.size_bytes), spec.stream)

    def _communicate(
        self,
        spec: Any,
        key: Any,
        ranks: tuple[int, ...],
        what: tuple[str, int],
        stream: int,
        routing: tuple[float, ...] = (),
    ) -> None:
        sequence = self.calls.get(key, 0)
        self.calls[key] = sequence + 1
        transfer = self.engine.transfer(key, sequence, ranks)
        transfer.sizes.add(what)
        tail = self.tails.get(p.COMPUTE_STREAM)
        if tail is not None and stream != p.COMPUTE_STREAM:
            self.waits.setdefault(stream, []).append(tail)
        start = self.now
        cost = self._cost(self.engine.model.communication_ns)
        external = self._next_external()
        self.external += 2
        kind = "collective" if isinstance(spec, p.Collective) else "message"
        self.host.append(
            (kind, spec, start, cost, self.thread, external, (sequence, what[1], routing))
        )
        self.now += cost
        launch = start + cost // 3
        ready = launch + self.engine.model.launch_latency_ns
        operation = Operation(spec, stream, 0, launch, ready)
        operation.transfer = transfer
        operation.sequence = sequence
        operation.size_bytes = what[1]
        operation.routing = routing
        self._issue(operation, cost, external)

    def _issue(self, operation: Operation, cost: int, external: int) -> None:
        stream = operation.stream
        operation.launch_dur = cost // 2
        self.correlation += 1
        operation.correlation = self.correlation
        operation.external = external
        operation.thread = self.thread
        self.operations.append(operation)
        before = self.tails.get(stream)
        if before is not None:
            _follow(operation, before, self.engine.model.kernel_gap_ns)
        waits = self.waits.get(stream)
        if waits:
            for other in waits:
                _follow(operation, other, 0)
            waits.clear()
        self.tails[stream] = operation
        if not operation.pending:
            self.engine.started(self.rank, operation)


def _follow(operation: Operation, before: Operation, gap: int) -> None:
    """``operation`` starts no earlier than ``before`` has ended."""
    if before.end < 0:
        operation.pending += 1
        _add_waiter(before, (operation, gap))
    elif before.end + gap > operation.ready:
        operation.ready = before.end + gap


def _add_waiter(operation: Operation, waiter: Any) -> None:
    if operation.waiters is None:
        operation.waiters = []
    operation.waiters.append(waiter)


class Engine:
    """All ranks of a job, step by step."""

    def __init__(
        self,
        world_size: int,
        network: Network,
        groups: Callable[[int, str], tuple[int, ...]],
        model: HostModel,
        transfer_noise: Callable[[Any], Iterator[float]],
        exit_noise: Callable[[Any], Iterator[float]],
    ) -> None:
        self.model = model
        self.network = network
        self.groups_of = groups
        self.links = LinkState()
        self.transfer_noise = transfer_noise
        self.exit_noise = exit_noise
        self._noises: dict[Any, tuple[Iterator[float], Iterator[float]]] = {}
        self._open: dict[Any, Transfer] = {}
        self._ready: deque[Process] = deque()
        self._owner: dict[int, int] = {}
        self.handlers: list[Callable[[Process, p.Instruction], None]] = [
            Process.do_kernel, Process.do_collective, Process.do_message, Process.do_wait,
            Process.do_wait_slot, Process.do_record, Process.do_sync, Process.do_begin,
            Process.do_end, Process.do_host, Process.do_thread, Process.do_mark,
        ]  # fmt: skip
        self.processes = [Process(self, r) for r in range(world_size)]

    def transfer(self, key: Any, sequence: int, ranks: tuple[int, ...]) -> Transfer:
        """The instance that the ``sequence``-th call belongs to."""
        whole = (key, sequence)
        found = self._open.get(whole)
        if found is None:
            found = self._open[whole] = Transfer(ranks)
        return found

    def run_step(self, programs: Sequence[tuple[p.Program, Conditions]]) -> bool:
        """One step of every rank; False where it hangs."""
        for process, (instructions, conditions) in zip(self.processes, programs, strict=True):
            process.give(instructions, conditions)
            self._ready.append(process)
        while self._ready:
            self._ready.popleft().run()
        return all(q.is_done and not q.is_stuck for q in self.processes)

    def started(self, rank: int, operation: Operation) -> None:
        """An operation has nothing left to wait for."""
        todo: list[tuple[int, Operation]] = [(rank, operation)]
        while todo:
            owner, current = todo.pop()
            current.start = current.ready
            transfer = current.transfer
            if transfer is None:
                current.end = current.start + current.dur
                self._wake(owner, current, todo)
                continue
            transfer.members.append((owner, current))
            transfer.missing -= 1
            transfer.latest = max(transfer.latest, current.start)
            if transfer.missing == 0:
                self._complete(transfer, todo)

    def _wake(self, owner: int, done: Operation, todo: list[tuple[int, Operation]]) -> None:
        waiters = done.waiters
        if waiters is None:
            return
        done.waiters = None
        for waiter in waiters:
            if isinstance(waiter, Process):
                self._ready.append(waiter)
                continue
            operation, gap = waiter
            operation.ready = max(operation.ready, done.end + gap)
            operation.pending -= 1
            if operation.pending == 0:
                todo.append((owner, operation))

    def _complete(self, transfer: Transfer, todo: list[tuple[int, Operation]]) -> None:
        first = transfer.members[0][1]
        key = (
            (first.spec.role, transfer.ranks)
            if isinstance(first.spec, p.Collective)
            else (first.spec.channel, *transfer.ranks)
        )
        self._open.pop((key, first.sequence), None)
        if len(transfer.sizes) > 1:
            return  # members that disagree never finish
        op, size = next(iter(transfer.sizes))
        noises = self._noises.get(key)
        if noises is None:
            noises = self._noises[key] = (self.transfer_noise(key), self.exit_noise(key))
        factor = next(noises[0])
        if op == "send_recv":
            src, dst = transfer.ranks
            base = self.network.pair_ns(src, dst, size, self.links)
        else:
            # The member that most tokens go to receives the longest.
            busiest = max(first.routing, default=0.0) * len(transfer.ranks)
            size = int(size * max(1.0, busiest))
            base = self.network.collective_ns(op, size, transfer.ranks, self.links)
        lossy = self.network.lossy(transfer.ranks, self.links)
        lost = 0.0
        if lossy is not None and next(noises[1]) < lossy[0]:
            lost, transfer.lost_at = lossy[1], lossy[2]
        end = transfer.latest + int(base * factor + lost)
        # In order of ranks, so that who came first changes nobody's noise.
        for owner, operation in sorted(transfer.members, key=lambda m: m[0]):
            operation.end = end + int(next(noises[1]) * self.exit_spread_ns)
            self._wake(owner, operation, todo)
        transfer.members.clear()

    exit_spread_ns = 3_000.0
    """Members leave a collective within this."""

"""The simulation itself: hosts that run programs, streams that run kernels, members that meet.

An operation starts when it was launched, when the one before it on its stream has ended and when
what its stream was told to wait for has ended. A collective ends, for every member, one transfer
after its last member has started. Nothing else makes anybody wait: bubbles, overlap and lateness
are what these three sentences lead to.

All times are whole nanoseconds of one true clock.

Hosts launch ahead of their streams, so in a large job each would have its whole step pending before
the last rank has launched anything. A host with ``LOOK_AHEAD`` operations that have not ended is
set aside until some of them have: that changes who runs when, and no time. What has ended becomes a
row of bytes (records.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from tracekit.simulate import program as p
from tracekit.simulate.network import LinkState, Network
from tracekit.simulate.records import Group, HostRecords, Meeting, Operations, Spool, Table, Work

LOOK_AHEAD = 64


class HostModel(Struct, frozen=True):
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


class Conditions(Struct):
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


class Process:
    """One rank: its host threads and its streams."""

    def __init__(self, engine: Engine, rank: int) -> None:
        self.engine = engine
        self.rank = rank
        self.now = 0
        self.tails: dict[int, Work] = {}
        self.waits: dict[int, list[Work]] = {}
        self.slots: dict[int, Work | None] = {}
        self.program: p.Program = []
        self.pc = 0
        self.conditions = Conditions()
        self.phase = 1.0
        self.thread = p.MAIN_THREAD
        self.open: list[tuple[str, str, int, int, int]] = []
        self.live: deque[Work] = deque()
        """Launched and not yet a row, in order of launches."""
        self.look_ahead = LOOK_AHEAD
        self.record(Spool(None, 1))
        self.compute_ns = 0
        """Of the job so far, by kernels that have ended."""
        self.calls: dict[Group, int] = {}
        self.external = 0
        self.correlation = 0
        self.blocked_on: list[Work] = []
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
        self.look_ahead = LOOK_AHEAD

    def record(self, spool: Spool) -> None:
        """Begin new records."""
        self.host = HostRecords(spool, self.engine.table)
        self.operations = Operations(spool, self.engine.table, self.engine.groups)

    @property
    def is_set_aside(self) -> bool:
        """Whether it could go on but for how far it looks ahead."""
        return self.pc < len(self.program) and self.sync is None and not self.is_stuck

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
            if len(self.live) > self.look_ahead and not self._has_room():
                return

    def _has_room(self) -> bool:
        """Whether what has ended leaves room to look further ahead; else it is told when."""
        self.keep_ended()
        live = self.live
        if len(live) <= self.look_ahead:
            return True
        middle = live[len(live) // 2]
        _add_waiter(middle if middle.end < 0 else live[0], self)
        return False

    def keep_ended(self) -> None:
        """Make rows of the first operations that have ended."""
        while self.live and self.live[0].end >= 0:
            self._keep(self.live.popleft())

    def keep_all(self) -> None:
        """Make rows of all operations: the step is over."""
        while self.live:
            self._keep(self.live.popleft())

    def _keep(self, work: Work) -> None:
        if work.meeting is None and work.end >= 0 and work.spec.kind == "kernel":
            self.compute_ns += work.end - work.start
        if self.engine.is_recorded:
            self.operations.add(work)

    # --- the host ------------------------------------------------------------------------------

    def _cost(self, base: float) -> int:
        if not base:
            return 0
        return int(base * next(self.host_noise) * self.conditions.host_scale)

    def _note(
        self, kind: str, name: Any, start: int, dur: int, external: int, more: Any = None
    ) -> None:
        if self.engine.is_recorded:
            self.host.add(kind, name, start, dur, self.thread, external, more)

    def _next_external(self) -> int:
        self.external += 1
        return self.external

    def do_host(self, instruction: p.Instruction) -> None:
        """Host work of a given time that launches nothing."""
        _, name, kind, base = instruction[:4]
        cost = int(base)
        if name:
            self._note(kind, name, self.now, cost, self._next_external())
        self.now += cost

    def do_begin(self, instruction: p.Instruction) -> None:
        """Open a range."""
        _, name, kind = instruction
        self.open.append((kind, name, self.now, self.thread, self._next_external()))

    def do_end(self, instruction: p.Instruction) -> None:
        """Close the innermost range."""
        kind, name, start, thread, external = self.open.pop()
        if self.engine.is_recorded:
            self.host.add(kind, name, start, self.now - start, thread, external)

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

    def _block(self, name: str, operations: list[Work], cost: int) -> None:
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
            self._note("cuda_runtime", name, start, end - start, self.correlation)
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
        self._note("cpu_op", spec.operator, start, cost, external, spec)
        self.now += cost
        launch = start + cost // 3
        ready = launch + self.engine.model.launch_latency_ns
        self._issue(Work(spec, stream, dur, launch, ready), cost, external)

    def _compute_on_host(self, spec: p.Kernel, stream: int, scale: float) -> None:
        waiting = [o for o in self.waits.get(stream, ()) if o.end < 0]
        if waiting:
            self.pc -= 1  # the same again once they have ended
            self._block("", waiting, 0)
            return
        dur = int(spec.dur_ns * next(self.kernel_noise) * scale)
        ends = [o.end for o in self.waits.pop(stream, ())]
        start = max([self.now, *ends])
        self._note("cpu_op", spec.operator, start, dur, self._next_external(), spec)
        self.compute_ns += dur
        self.now = start + dur
        done = Work(spec, stream, dur, start, start)
        done.start, done.end = start, self.now
        self.tails[stream] = done

    def do_collective(self, instruction: p.Instruction) -> None:
        """Launch one's part of a collective; its stream waits for what compute was given."""
        spec: p.Collective = instruction[1]
        group = self.engine.group_of(self.rank, spec.role)
        if len(group.ranks) < 2:
            return
        if self.conditions.skip_collective == spec.role:
            self.is_stuck = True
            return
        size = spec.total_bytes
        if self.conditions.change_collective == spec.role:
            self.conditions.change_collective = None
            size = size * 3 // 4
        routing = self.conditions.routing if spec.is_expert else ()
        self._communicate("collective", spec, group, (spec.op, size), routing)

    def do_message(self, instruction: p.Instruction) -> None:
        """Launch one's half of a send/receive pair."""
        spec: p.Message = instruction[1]
        group = self.engine.pair_of(self.rank, spec)
        self._communicate("message", spec, group, ("send_recv", spec.size_bytes))

    def _communicate(
        self,
        kind: str,
        spec: Any,
        group: Group,
        what: tuple[str, int],
        routing: tuple[float, ...] = (),
    ) -> None:
        stream = spec.stream
        sequence = self.calls.get(group, 0)
        self.calls[group] = sequence + 1
        meeting = self.engine.meeting(group, sequence)
        meeting.sizes.add(what)
        tail = self.tails.get(p.COMPUTE_STREAM)
        if tail is not None and stream != p.COMPUTE_STREAM:
            self.waits.setdefault(stream, []).append(tail)
        start = self.now
        cost = self._cost(self.engine.model.communication_ns)
        external = self._next_external()
        self.external += 2
        self._note(kind, spec, start, cost, external, (sequence, what[1], routing))
        self.now += cost
        launch = start + cost // 3
        ready = launch + self.engine.model.launch_latency_ns
        work = Work(spec, stream, 0, launch, ready)
        work.meeting = meeting
        work.size_bytes = what[1]
        work.routing = routing
        self._issue(work, cost, external)

    def _issue(self, work: Work, cost: int, external: int) -> None:
        stream = work.stream
        work.launch_dur = cost // 2
        self.correlation += 1
        work.correlation = self.correlation
        work.external = external
        work.thread = self.thread
        self.live.append(work)
        before = self.tails.get(stream)
        if before is not None:
            _follow(work, before, self.engine.model.kernel_gap_ns)
        waits = self.waits.get(stream)
        if waits:
            for other in waits:
                _follow(work, other, 0)
            waits.clear()
        self.tails[stream] = work
        if not work.pending:
            self.engine.started(self.rank, work)


def _follow(work: Work, before: Work, gap: int) -> None:
    """``work`` starts no earlier than ``before`` has ended."""
    if before.end < 0:
        work.pending += 1
        _add_waiter(before, (work, gap))
    elif before.end + gap > work.ready:
        work.ready = before.end + gap


def _add_waiter(work: Work, waiter: Any) -> None:
    if work.waiters is None:
        work.waiters = []
    work.waiters.append(waiter)


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
        *,
        is_recorded: bool = True,
    ) -> None:
        self.model = model
        self.network = network
        self.links = LinkState()
        self.is_recorded = is_recorded
        self.table = Table()
        self.groups: list[Group] = []
        self._members = groups
        self._groups: dict[tuple[Any, ...], Group] = {}
        self._of_ranks: dict[tuple[int, str], Group] = {}
        self._of_pairs: dict[tuple[int, str, int, bool], Group] = {}
        self.transfer_noise = transfer_noise
        self.exit_noise = exit_noise
        self._noises: dict[Group, tuple[Iterator[float], Iterator[float]]] = {}
        self._open: dict[tuple[Group, int], Meeting] = {}
        self._ready: deque[Process] = deque()
        self.handlers: list[Callable[[Process, p.Instruction], None]] = [
            Process.do_kernel, Process.do_collective, Process.do_message, Process.do_wait,
            Process.do_wait_slot, Process.do_record, Process.do_sync, Process.do_begin,
            Process.do_end, Process.do_host, Process.do_thread, Process.do_mark,
        ]  # fmt: skip
        self.processes = [Process(self, r) for r in range(world_size)]

    def group_of(self, rank: int, role: str) -> Group:
        """A rank's group of a role."""
        group = self._of_ranks.get((rank, role))
        if group is None:
            ranks = self._members(rank, role)
            group = self._of_ranks[rank, role] = self._group((role, ranks), role, ranks)
        return group

    def pair_of(self, rank: int, spec: p.Message) -> Group:
        """The two sides of a message of a rank, the sender first."""
        pair_key = (rank, spec.channel, spec.peer_offset, spec.is_send)
        group = self._of_pairs.get(pair_key)
        if group is None:
            members = self._members(rank, spec.role)
            peer = members[(members.index(rank) + spec.peer_offset) % len(members)]
            pair = (rank, peer) if spec.is_send else (peer, rank)
            group = self._group((spec.channel, *pair), spec.channel, pair)
            self._of_pairs[pair_key] = group
        return group

    def _group(self, key: tuple[Any, ...], channel: str, ranks: tuple[int, ...]) -> Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(len(self.groups), key, channel, ranks)
            self.groups.append(group)
        return group

    def meeting(self, group: Group, sequence: int) -> Meeting:
        """The instance that the ``sequence``-th call belongs to."""
        meeting = self._open.get((group, sequence))
        if meeting is None:
            meeting = self._open[group, sequence] = Meeting(group, sequence)
        return meeting

    def run_step(self, programs: Sequence[tuple[p.Program, Conditions]]) -> bool:
        """One step of every rank; False where it hangs."""
        for process, (instructions, conditions) in zip(self.processes, programs, strict=True):
            process.give(instructions, conditions)
            self._ready.append(process)
        while self._ready:
            while self._ready:
                self._ready.popleft().run()
            # Nobody can go on: those that wait for each other's launches look further ahead.
            for process in self.processes:
                if process.is_set_aside:
                    process.look_ahead *= 2
                    self._ready.append(process)
        for process in self.processes:
            process.keep_all()
        return all(q.is_done and not q.is_stuck for q in self.processes)

    def started(self, rank: int, work: Work) -> None:
        """An operation has nothing left to wait for."""
        todo: list[tuple[int, Work]] = [(rank, work)]
        while todo:
            owner, current = todo.pop()
            current.start = current.ready
            meeting = current.meeting
            if meeting is None:
                current.end = current.start + current.dur
                self._wake(owner, current, todo)
                continue
            meeting.members.append((owner, current))
            meeting.missing -= 1
            meeting.latest = max(meeting.latest, current.start)
            if meeting.missing == 0:
                self._complete(meeting, todo)

    def _wake(self, owner: int, done: Work, todo: list[tuple[int, Work]]) -> None:
        waiters = done.waiters
        if waiters is None:
            return
        done.waiters = None
        for waiter in waiters:
            if isinstance(waiter, Process):
                self._ready.append(waiter)
                continue
            work, gap = waiter
            work.ready = max(work.ready, done.end + gap)
            work.pending -= 1
            if work.pending == 0:
                todo.append((owner, work))

    def _complete(self, meeting: Meeting, todo: list[tuple[int, Work]]) -> None:
        group = meeting.group
        del self._open[group, meeting.sequence]
        if len(meeting.sizes) > 1:
            return  # members that disagree never finish
        op, size = next(iter(meeting.sizes))
        noises = self._noises.get(group)
        if noises is None:
            noises = (self.transfer_noise(group.key), self.exit_noise(group.key))
            self._noises[group] = noises
        factor = next(noises[0])
        if op == "send_recv":
            src, dst = group.ranks
            base = self.network.pair_ns(src, dst, size, self.links)
        else:
            # The member that most tokens go to receives the longest.
            busiest = max(meeting.members[0][1].routing, default=0.0) * len(group.ranks)
            size = int(size * max(1.0, busiest))
            base = self.network.collective_ns(op, size, group.ranks, self.links)
        lossy = self.network.lossy(group.ranks, self.links)
        lost = 0.0
        if lossy is not None and next(noises[1]) < lossy[0]:
            lost, meeting.lost_at = lossy[1], lossy[2]
        end = meeting.latest + int(base * factor + lost)
        # In order of ranks, so that who came first changes nobody's noise.
        for owner, work in sorted(meeting.members, key=lambda m: m[0]):
            work.end = end + int(next(noises[1]) * self.exit_spread_ns)
            self._wake(owner, work, todo)
        meeting.members.clear()

    exit_spread_ns = 3_000.0
    """Members leave a collective within this."""

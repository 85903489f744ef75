"""Work on other machines, by a Dask cluster: one that is there, or one that is started for it.

    with Cluster(scheduler="tcp://head:8786") as cluster:
        for item, told in cluster.map(function, items): ...

What a task makes goes to the store that it is told of; what it returns passes the scheduler, and so
is small. Who holds a scheduler runs code on its workers: docs/cluster.md says which trust that
needs. dask.distributed is imported when the first task is handed out, and never before.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import queue
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct, field

from tracekit.errors import (
    ClusterError,
    DamagedRunError,
    InputError,
    TracekitError,
    UsageError,
    where_raised,
)
from tracekit.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOG = logging.getLogger("tracekit")

KINDS = ("local", "slurm", "kubernetes")
"""Clusters that can be started for one command."""
TRIES = 3
"""How often a task is begun that fails, each time on another worker if there is one."""
CONNECT_S = 20.0
"""How long a scheduler may take to answer."""
NO_WORKER_S = 600.0
"""How long to wait while there is no worker: a queue, or a cluster that grows with its work. Dask's
setting ``tracekit.no-worker-timeout`` is another number of seconds."""
LOOK_S = 2.0
"""How often it is looked whether there are workers still."""
LATE_S = 60.0
"""How long a file may need until another machine sees it: file systems of a network keep a folder's
names for a while."""
IMPORTED = "tracekit.cluster"
"""What a worker must be able to import."""
IDLE_S = 3600
"""After so long without a task the operator of Kubernetes removes a cluster: deriving a run, while
its workers wait, takes minutes."""
WORKER_MEMORY = "4GiB"
"""Of a worker of Slurm, where Dask's configuration names no other."""


class LostWorkerError(ClusterError):
    """A task whose worker ended each time that it was begun."""


class NotSeenError(ClusterError):
    """A worker does not see what is seen here."""


class FailedTaskError(Exception):
    """A task that failed for a reason that nobody foresaw: a bug, or a library's error."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.kind = where.partition(" at ")[0]
        """The name of the error's class."""


class _Told(Struct, Generic[Result], frozen=True):
    """What a worker says of a task."""

    worker: str
    """Its address, as its scheduler knows it."""
    host: str
    result: Result | None = None
    error: TracekitError | FailedTaskError | None = None
    version: str | None = None
    """Of its tracekit, where it is another than that of who asks: nothing was done."""


class _Task(Struct, Generic[Item]):
    item: Item
    tries: int = 0
    failed_on: set[str] = field(default_factory=set)
    """Addresses of workers."""


class Cluster:
    """A cluster by its scheduler's address, or by what starts one. Nothing starts before the first
    task; what was started ends with the ``with`` statement.

    UsageError where neither or both are given, or it is not known.
    """

    def __init__(
        self,
        *,
        scheduler: str | None = None,
        kind: str | None = None,
        workers: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        if (scheduler is None) == (kind is None):
            raise UsageError(
                "--scheduler and --cluster exclude each other",
                hint="--scheduler tcp://HOST:8786 for one that is there; --cluster starts one",
            )
        if kind is not None and kind not in KINDS:
            raise UsageError(f"--cluster: {kind!r} is none of {', '.join(KINDS)}")
        if kind not in (None, "local") and workers is None:
            raise UsageError(
                f"--cluster {kind} needs to know how many workers to start", hint="--workers 16"
            )
        self.name = scheduler or f"the {kind} cluster"
        self._scheduler, self._kind = scheduler, kind
        self._workers, self._memory_bytes = workers, memory_bytes
        self._stack = contextlib.ExitStack()
        self._client_or_none: Client | None = None
        self._is_tried = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *raised: object) -> None:
        self._client_or_none = None
        with contextlib.suppress(OSError, TimeoutError):  # of a cluster that is gone already
            self._stack.close()

    @property
    def worker_memory_bytes(self) -> int | None:
        """What one worker may take, of the memory that was given for all of a local cluster."""
        if self._kind != "local" or self._memory_bytes is None:
            return None
        return self._memory_bytes // self.width

    @property
    def width(self) -> int:
        """How many tasks may run at once, as far as is known before any is handed out."""
        if self._kind is not None:
            from tracekit.runs.plan import available_cpus

            return self._workers or available_cpus()
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return sum(w["nthreads"] for w in workers.values()) or self._workers or 1

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Iterator[tuple[Item, Result | TracekitError | FailedTaskError]]:
        """What a function of a module gives of each item, or its error, in the order in which they
        end.

        A task whose worker is lost, or that fails for a reason that may be its worker's, is begun
        again elsewhere; so a function must do no harm when it runs twice, even at once. Of a
        worker that ends several tasks are suspects: they are begun again alone. ``meanwhile`` is
        called now and then. ClusterError where no worker appears or the scheduler goes away,
        UsageError where a worker has another tracekit.
        """
        client = self._client
        ended: queue.SimpleQueue[Future[_Told[Result]]] = queue.SimpleQueue()
        tasks: dict[Future[_Told[Result]], _Task[Item]] = {}
        suspects: deque[_Task[Item]] = deque()

        def hand_out(task: _Task[Item]) -> None:
            task.tries += 1
            others = None
            if task.failed_on:
                known = client.scheduler_info(n_workers=-1)["workers"]
                others = [w for w in known if w not in task.failed_on] or None
            future = client.submit(
                _at_worker,
                function,
                task.item,
                source_version(),
                pure=False,
                workers=others,
                allow_other_workers=others is not None,  # where those are gone: any
            )
            tasks[future] = task
            future.add_done_callback(ended.put)

        wait = _Patience(client, self.name)
        if items and not self._is_tried:
            self._try(client, wait, meanwhile)
        try:
            for item in items:
                hand_out(_Task(item))
            while tasks or suspects:
                if not tasks:
                    hand_out(suspects.popleft())
                try:
                    future = ended.get(timeout=LOOK_S)
                except queue.Empty:
                    wait.look()
                    meanwhile()
                    continue
                meanwhile()
                task = tasks.pop(future)
                told: _Told[Result] | LostWorkerError = self._told(future)
                future.release()
                if isinstance(told, LostWorkerError):
                    if task.tries > 1:
                        yield task.item, told
                    else:
                        suspects.append(task)
                    continue
                if told.version is not None:
                    raise UsageError(
                        f"{self.name}: the worker on {told.host} has tracekit {told.version}, "
                        f"here it is {source_version()}",
                        hint="install the same tracekit everywhere; the part after '+' is a hash "
                        "of its source text",
                    )
                if told.error is None:
                    yield task.item, told.result  # type: ignore[misc]  # a result of None is one
                elif isinstance(told.error, _FINAL) or task.tries >= TRIES:
                    yield task.item, told.error
                else:
                    task.failed_on.add(told.worker)
                    hand_out(task)
        finally:
            if tasks:
                with contextlib.suppress(Exception):  # the scheduler may be what has gone
                    client.cancel([*tasks])

    def _try(self, client: Client, wait: _Patience, meanwhile: Callable[[], object]) -> None:
        """Have a worker import what tasks are made of. One that cannot would end of the first task,
        and so would its successor, while whoever asks waits. ClusterError where it cannot."""
        future = client.submit(importlib.import_module, IMPORTED, pure=False)
        while future.status == "pending":
            with contextlib.suppress(Exception):  # a timeout; what else there is, is told below
                future.exception(timeout=LOOK_S)
            if future.status == "pending":
                wait.look()
            meanwhile()
        if future.status != "finished":
            self._told(future)
        self._is_tried = True

    def _told(self, future: Future[_Told[Result]]) -> _Told[Result] | LostWorkerError:
        from concurrent.futures import CancelledError

        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        try:
            return future.result()  # type: ignore[no-any-return]
        except KilledWorker:
            return LostWorkerError(
                "its worker was killed each time; the usual reason is that memory ran out",
                hint="workers of more memory; what is finished is kept",
            )
        except (FutureCancelledError, CancelledError):
            raise ClusterError(
                f"{self.name}: the scheduler went away, or cancelled the work",
                hint="what is finished is kept: the same command goes on from there",
            ) from None
        except Exception as error:
            # Raised by the worker itself: it could not even load what it was to call.
            raise ClusterError(
                f"{self.name}: a task could not be begun ({type(error).__name__})",
                hint="scheduler and workers need the same tracekit as here: pip install "
                "'tracekit[cluster]' for each",
            ) from None

    @property
    def _client(self) -> Client:
        if self._client_or_none is None:
            try:
                import distributed  # noqa: F401
            except ImportError:
                raise UsageError(
                    "work on a cluster needs dask.distributed",
                    hint="pip install 'tracekit[cluster]'",
                ) from None
            self._client_or_none = self._connected()
        return self._client_or_none

    def _connected(self) -> Client:
        from distributed import Client

        where = (
            self._scheduler if self._kind is None else self._stack.enter_context(self._started())
        )
        try:
            client = Client(where, timeout=CONNECT_S, set_as_default=False, name="tracekit")
        except (OSError, ValueError, TypeError, ImportError) as error:
            raise ClusterError(
                f"{self.name}: no Dask scheduler answers ({type(error).__name__})",
                hint="tcp://HOST:8786, or tls:// with the certificates in Dask's configuration",
            ) from None
        return self._stack.enter_context(client)

    def _started(self) -> contextlib.AbstractContextManager[Any]:
        start = {"local": _local, "slurm": _slurm, "kubernetes": _kubernetes}[self._kind or ""]
        try:
            return start(self.width, self.worker_memory_bytes)
        except ImportError as error:
            raise UsageError(
                f"--cluster {self._kind} needs the package {error.name}",
                hint="pip install 'tracekit[cluster]'",
            ) from None
        except Exception as error:  # the client of a cluster's API has errors of its own
            if os.environ.get("TRACEKIT_DEBUG"):
                raise
            raise ClusterError(
                f"{self.name} cannot be started ({type(error).__name__})",
                hint=f"Dask's configuration says how: docs/cluster.md, --cluster {self._kind}",
            ) from None


@contextlib.contextmanager
def cluster_of(
    scheduler: str | None,
    kind: str | None,
    workers: int | None = None,
    memory_bytes: int | None = None,
) -> Iterator[Cluster | None]:
    """The cluster that was asked for; None where there is none. Errors as those of ``Cluster``."""
    if scheduler is None and kind is None:
        yield None
        return
    with Cluster(
        scheduler=scheduler, kind=kind, workers=workers, memory_bytes=memory_bytes
    ) as cluster:
        yield cluster


_FINAL = (InputError, UsageError, DamagedRunError)
"""Errors that any worker would meet."""


class _Patience:
    """Waits for workers, but not for ever."""

    def __init__(self, client: Client, name: str) -> None:
        import dask

        self._client, self._name = client, name
        self._limit_s = float(dask.config.get("tracekit.no-worker-timeout", NO_WORKER_S))
        self._missing_s = 0.0

    def look(self) -> None:
        """Called each ``LOOK_S``: ClusterError where there has been no worker for too long."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        self._missing_s = 0.0 if workers else self._missing_s + LOOK_S
        if self._missing_s > self._limit_s:
            raise ClusterError(
                f"{self._name}: there was no worker for {self._limit_s:.0f} s",
                hint="look at the cluster's queue and its workers' logs; Dask's setting "
                "tracekit.no-worker-timeout is how long to wait, in seconds",
            )


def _at_worker(function: Callable[[Item], Result], item: Item, version: str) -> _Told[Result]:
    """In a worker: do it, and say how it went. Whatever fails is an answer."""
    from distributed import get_worker

    worker, host = str(get_worker().address), os.uname().nodename
    if version != source_version():
        return _Told(worker, host, version=source_version())
    try:
        return _Told(worker, host, function(item))
    except TracekitError as error:
        return _Told(worker, host, error=error)
    except Exception as error:
        if os.environ.get("TRACEKIT_DEBUG"):
            raise
        return _Told(worker, host, error=FailedTaskError(where_raised(error)))


def check_seen(path: str, is_seen: bool) -> None:
    """In a worker: NotSeenError, with this host's name, where a path is not seen as its client
    sees it."""
    if not is_seen:
        raise NotSeenError(
            f"{path}: the worker on {os.uname().nodename} does not see it as it is here",
            hint="sources, and a run or a lake that is a folder, must lie on a file system that "
            "all workers share",
        )


def arrived(paths: Sequence[Path], sizes: Sequence[int] | None = None) -> None:
    """Wait until what a worker wrote is seen here. NotSeenError where it never is."""
    until = time.monotonic() + LATE_S
    for index, path in enumerate(paths):
        while not _is_there(path, None if sizes is None else sizes[index]):
            if time.monotonic() > until:
                raise NotSeenError(
                    f"{path}: a worker wrote it, and it is not seen here",
                    hint="it must lie on a file system that all workers share",
                )
            time.sleep(LOOK_S / 10)


def _is_there(path: Path, size: int | None) -> bool:
    try:
        size_there = path.stat().st_size
        return size is None or size_there == size
    except OSError:
        return False


def memory_of_this_worker(given_bytes: int | None) -> int | None:
    """In a worker: what one task may take; of ``given_bytes``, or of the worker's own limit."""
    if given_bytes is not None:
        return given_bytes
    from distributed import get_worker

    worker = get_worker()
    limit = worker.memory_manager.memory_limit
    # Above 60 % Dask begins to spill and to pause.
    return int(limit * 0.6 / worker.state.nthreads) if limit else None


@cache
def source_version() -> str:
    """The version, and a hash of all source text of the package: what decides about rows and words.

    Of a build without sources it is the version alone. Some 30 ms, once a process.
    """
    digest = hashlib.sha256()
    root = Path(__file__).parent
    # The folders of a checkout are links, which a wheel does not have.
    for parent, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".py", ".sql", ".toml")):
                path = Path(parent) / name
                digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:12]}"


class SharedFolder:
    """A folder for tasks whose paths are relative to it: the process's, while any task needs it.

    Tasks of one worker that need another wait for it: a process has one.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._now: str | None = None
        self._before = Path()
        self._count = 0

    @contextlib.contextmanager
    def entered(self, folder: str) -> Iterator[None]:
        """Be there. OSError where there is no such folder."""
        with self._free:
            self._free.wait_for(lambda: self._now in (None, folder))
            if self._now is None:
                before = Path.cwd()
                os.chdir(folder)
                self._now, self._before = folder, before
            self._count += 1
        try:
            yield
        finally:
            with self._free:
                self._count -= 1
                if not self._count:
                    os.chdir(self._before)
                    self._now = None
                    self._free.notify_all()


def _local(workers: int, memory_bytes: int | None) -> contextlib.AbstractContextManager[Any]:
    import dask
    from distributed import LocalCluster

    # Pages that any user of the machine could read would name runs and files.
    no_pages: dict[str, list[str]] = {
        "distributed.scheduler.http-routes": [],
        "distributed.worker.http-routes": [],
    }
    with dask.config.set(no_pages):
        return LocalCluster(  # type: ignore[no-any-return]
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=memory_bytes or 0,
            dashboard_address="127.0.0.1:0",
            silence_logs="CRITICAL",
            security=_security(may_make_one=True, is_asked=False),
            local_directory=tempfile.gettempdir(),
        )


def _slurm(workers: int, memory_bytes: int | None) -> contextlib.AbstractContextManager[Any]:
    import dask
    from dask_jobqueue import SLURMCluster

    configured = dask.config.get("jobqueue.slurm", {})
    defaults = {
        "cores": 1,
        "memory": WORKER_MEMORY,
        "log-directory": tempfile.gettempdir(),  # else in whatever folder the command began
        "python": sys.executable,
    }
    missing = {n.replace("-", "_"): v for n, v in defaults.items() if configured.get(n) is None}
    is_asked = configured.get("shared-temp-directory") is not None
    cluster = SLURMCluster(security=_security(may_make_one=is_asked, is_asked=is_asked), **missing)
    cluster.scale(workers)
    return cluster  # type: ignore[no-any-return]


def _kubernetes(workers: int, memory_bytes: int | None) -> contextlib.AbstractContextManager[Any]:
    import secrets

    import dask
    from dask_kubernetes.operator import KubeCluster

    # The library lays its own defaults over what the configuration says, and there a list of
    # variables, which is how secrets are named, becomes none: pods without credentials.
    env = dask.config.collect().get("kubernetes", {}).get("env")
    idle = dask.config.get("kubernetes.idle-timeout", None)
    try:
        return KubeCluster(  # type: ignore[no-any-return]
            name=f"tracekit-{secrets.token_hex(4)}",
            n_workers=workers,
            quiet=True,
            env=env if isinstance(env, list) else None,
            # What a command that is killed leaves, the operator removes.
            idle_timeout=IDLE_S if idle is None else idle,
        )
    except BaseException:
        # Pods may be pending. At exit the library would try it, too, and print how that failed.
        for begun in [*getattr(KubeCluster, "_instances", ())]:
            with contextlib.suppress(Exception):
                begun.close(timeout=10)
            getattr(KubeCluster, "_instances").discard(begun)  # noqa: B009  # private, and no type
        raise


def _security(*, may_make_one: bool, is_asked: bool) -> Any:
    """Dask's own, where its configuration has certificates; else new ones for this one cluster
    where they can be handed to its workers, so that no other user of the machine can use it.

    ImportError where certificates are asked for and cannot be made; else a warning says so.
    """
    import dask
    from distributed import Security

    if dask.config.get("distributed.comm.tls.ca-file", None):
        return Security()
    if not may_make_one:
        return None
    try:
        return Security.temporary()
    except ImportError:
        if is_asked:
            raise ImportError("no certificates", name="cryptography") from None
        _LOG.warning(
            "the local cluster has no certificates: any user of this machine can run code as you "
            "while it is there; pip install cryptography"
        )
        return None

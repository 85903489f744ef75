"""Programs that serve an object store on loopback, and what is asked of a lake in any of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tracekit import api
from tracekit.cli.app import main
from tracekit.fleet import tables
from tracekit.fleet.lakes import lake_at
from tracekit.fleet.rollup import rolled_up
from tracekit.fleet.store import FleetStore

ALL = "GET,PUT,HEAD,POST,DELETE"
PROXY = Path(__file__).with_name("fleet") / "failing_proxy.py"
Plan = Callable[..., dict[str, int]]
"""Says what happens from here on; gives what was met before."""


def asked(port: int, path: str, method: str = "GET", **headers: str) -> bytes:
    """The answer of a server on loopback."""
    url = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(url, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
        return bytes(answer.read())


@contextmanager
def served(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """The port of a program that runs meanwhile; ``PORT`` in its words is replaced by it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    quiet = subprocess.DEVNULL
    own = [word.replace("PORT", str(port)) for word in words]
    with subprocess.Popen(own, stdout=quiet, stderr=quiet, env=environment) as server:
        try:
            for _ in range(600):
                with socket.socket() as there:
                    if there.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield port
        finally:
            server.terminate()


@contextmanager
def proxied(*ports: int) -> Iterator[tuple[int, Plan]]:
    """A proxy before servers: its port, and who says what it does."""
    words = [sys.executable, str(PROXY), *map(str, ports)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as proxy:
        try:
            assert proxy.stdout is not None
            own = int(proxy.stdout.readline())

            def say(
                fault: str = "ok", every: int = 1, methods: str = ALL, after: int = 0
            ) -> dict[str, int]:
                plan = {"fault": fault, "every": every, "methods": methods, "after": after}
                met: dict[str, int] = json.loads(asked(own, f"/plan?{urlencode(plan)}"))
                return met

            say()
            yield own, say
        finally:
            proxy.terminate()


def command(*words: str) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


def rows_of(root: str | Path) -> dict[str, list[dict[str, Any]]]:
    """What the tables of a lake hold."""
    store = FleetStore(lake_at(root).fleet)
    return {t.name: store.rows(t.name) for t in tables.TABLES}


def roll_up_one(root: str | Path) -> None:
    """A night of one run."""
    rolled = rolled_up(lake_at(root))
    assert (len(rolled.done), rolled.failed) == (1, ())


_COMMITS = """
import sys
from tracekit.fleet.store import FleetStore

root, writer, count = sys.argv[1:]
store = FleetStore(root + "/fleet")
for i in range(int(count)):
    own = {"date": "2026-07-21", "run": f"{writer}-{i}"}
    store.replace({"job": [own], "step": [own]}, [own["run"]], [own["date"]])
"""


def commit_at_once(root: str, writers: int = 2, count: int = 4) -> None:
    """Several processes write rows of a date at once, each those of runs of its own; no lock."""
    words = [sys.executable, "-c", _COMMITS, root]
    started = [subprocess.Popen([*words, str(w), str(count)]) for w in range(writers)]
    assert [process.wait(300) for process in started] == [0] * writers
    store = FleetStore(f"{root}/fleet")
    for name in ("job", "step"):
        rows = sorted(row["run"] for row in store._read(tables.table(name)))
        assert rows == sorted(f"{w}-{i}" for w in range(writers) for i in range(count))


def told_of(run: str | Path) -> str:
    """What its diagnosis says, wherever it lies."""
    with api.open(run) as opened:
        text = opened.diagnose().to_json()
    assert str(run) in text
    return text.replace(str(run), "RUN")

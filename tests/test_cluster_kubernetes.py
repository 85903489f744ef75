"""``--cluster kubernetes`` with the real dask-kubernetes, against a server that stands in for the
API of Kubernetes: what would be created by the configuration that docs/cluster.md shows.

Needs dask-kubernetes (the extra cluster); elsewhere it skips.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tracekit.cluster import IDLE_S
from tracekit.fleet.lake import make_lake
from traces import write_job

pytest.importorskip("dask_kubernetes", reason="needs pip install 'tracekit[cluster]'")

ROOT = Path(__file__).resolve().parents[1]
Asked = list[tuple[str, str, bytes]]


class _Forbids(http.server.BaseHTTPRequestHandler):
    """An API that knows nothing and lets nothing be created."""

    asked: Asked

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.asked.append((self.command, self.path, body))
        code, said = 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
        if self.path.startswith("/version"):
            code, said = 200, {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
        elif self.command == "POST":
            code, said = 403, {"kind": "Status", "code": 403, "message": "forbidden"}
        data = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = do_PATCH = _answer  # noqa: N815  # names of the library

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """What an API is asked that everything here takes for that of Kubernetes."""
    handler = type("Handler", (_Forbids,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "users": [{"name": "a", "user": {"token": "x"}}],
        "current-context": "a",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    try:
        yield handler.asked  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()


def documented() -> str:
    """The configuration that docs/cluster.md shows."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/cluster.md").read_text(), re.S)
    return str(next(b for b in blocks if b.startswith("kubernetes:")))


def started(folder: Path) -> str:
    """What a command says that starts such a cluster: a process of its own, since the library reads
    configurations when it is imported."""
    (folder / "dask").mkdir()
    (folder / "dask" / "kubernetes.yaml").write_text(documented())
    write_job(folder / "job", steps_count=2)
    lake = make_lake(folder / "lake")
    lake.add([folder / "job"], name="job", workers=1)
    words = ("rollup", lake.root, "--cluster", "kubernetes", "--workers", "3")
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", *words],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DASK_CONFIG": str(folder / "dask"),
            "KUBECONFIG": str(folder / "config"),
        },
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert not (lake.root / "rollup.lock").exists()
    return done.stderr


def test_what_the_documentation_shows_is_what_would_be_created(
    asked: Asked, tmp_path: Path
) -> None:
    assert "error: the kubernetes cluster cannot be started" in started(tmp_path)
    (said_once,) = {body for command, _, body in asked if command == "POST"}  # tried again
    made = json.loads(said_once)
    assert re.fullmatch(r"tracekit-[0-9a-f]{8}", made["metadata"]["name"])
    assert made["metadata"]["namespace"] == "tracekit"
    assert made["spec"]["idleTimeout"] == IDLE_S
    worker = made["spec"]["worker"]
    assert worker["replicas"] == 3
    (container,) = worker["spec"]["containers"]
    said = yaml.safe_load(documented())["kubernetes"]
    assert container["args"][:4] == said["worker-command"].split()
    assert container["image"] == said["image"]
    assert container["resources"] == said["resources"]
    assert container["env"] == said["env"]  # secrets by reference, and nowhere else
    (scheduler,) = made["spec"]["scheduler"]["spec"]["containers"]
    assert (scheduler["image"], scheduler["env"]) == (said["image"], said["env"])


def test_an_api_that_does_not_answer_is_told_and_nothing_is_tried_at_exit(
    asked: Asked, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", config.read_text()))
    errors = started(tmp_path).splitlines()
    assert [line.split(":")[0] for line in errors] == ["error", "hint"]
    assert not asked

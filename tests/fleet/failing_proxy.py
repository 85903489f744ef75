"""A proxy before a server, as a program of its own: ``failing_proxy.py PORT`` prints its own port.

What servers for tests leave out: of Azurite's lists what comes before ``startFrom``, on which Delta
Lake relies, is taken out here; of Google's two interfaces an emulator knows the JSON one, so what
is asked through the XML one, which is S3's, goes to a second port, an S3 server's.

A process of its own, because the library of Delta Lake holds Python's lock while it asks a store.
``GET /plan?fault=F&every=N&methods=A,B&after=M`` says what happens to every Nth request of these
methods after the first M, and answers how often each fate was met since the last plan.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

SLOW_S = 1.0
HOP = ("connection", "expect", "transfer-encoding", "content-length", "date")
BLOB = re.compile(rb"<Blob><Name>([^<]*)</Name>.*?</Blob>", re.S)
REFUSALS = {
    "503": b"<Error><Code>SlowDown</Code><Message>planted-answer</Message></Error>",
    "403": b"<Error><Code>AccessDenied</Code><Message>planted-answer</Message></Error>",
}


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behind: int, xml: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = behind
        self.xml = xml
        self.plan: dict[str, str] = {}
        self.asked = 0
        self.met: dict[str, int] = {}
        self.lock = threading.Lock()

    def fate(self, method: str) -> str:
        plan = self.plan
        with self.lock:
            if not plan or method not in plan["methods"].split(","):
                return "ok"
            self.asked += 1
            late = self.asked - int(plan["after"])
            fate = plan["fault"] if late > 0 and late % int(plan["every"]) == 0 else "ok"
            self.met[fate] = self.met.get(fate, 0) + 1
        return fate


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *_: object) -> None:
        pass

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if self.command != "HEAD" else b"")

    def _planned(self) -> None:
        met, self.server.met = self.server.met, {}
        self.server.asked = 0
        self.server.plan = dict(parse_qsl(urlsplit(self.path).query))
        self._answer(200, json.dumps(met).encode())

    def _do(self) -> None:
        if self.path.startswith("/plan?"):
            return self._planned()
        fate = self.server.fate(self.command)
        if fate == "cut upload":
            self.rfile.read(int(self.headers.get("Content-Length") or 8) // 2)
            return self._cut()
        body = self._body()
        if fate == "gone":
            return self._cut()
        if fate in REFUSALS:
            return self._answer(int(fate), REFUSALS[fate])
        if fate == "slow":
            time.sleep(SLOW_S)
        is_json = self.path.startswith(("/storage/", "/upload/", "/download/"))
        port = self.server.behind if is_json else self.server.xml
        behind = HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP[:-1]}
        if port != self.server.behind:
            headers["authorization"] = "Bearer x"  # the emulator's token is empty: moto fails of it
        behind.request(self.command, self.path, body, headers)
        answer = behind.getresponse()
        data = answer.read()
        if start := dict(parse_qsl(urlsplit(self.path).query)).get("startFrom"):
            data = BLOB.sub(lambda blob: blob[0] if blob[1].decode() >= start else b"", data)
        self.send_response(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in HOP:
                self.send_header(key, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", size or "0")
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if fate == "cut answer" else data)
        if fate == "cut answer":
            self._cut()
        return None

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _do  # noqa: N815 - as http.server asks


if __name__ == "__main__":
    proxy = Proxy(int(sys.argv[1]), int(sys.argv[-1]))
    print(proxy.server_address[1], flush=True)  # noqa: T201 - the port, for whoever started it
    proxy.serve_forever()

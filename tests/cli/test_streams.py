"""What a command writes to: streams of any encoding, and standard output that fails."""

from __future__ import annotations

import errno
import io
import json
import sys

import pytest

from tracekit.cli import state
from tracekit.errors import UsageError


class Failing(io.StringIO):
    """A standard output on which nothing can be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def flush(self) -> None:
        raise self._error


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams of this process stay what they are, and none is pointed elsewhere."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)


def test_a_stream_of_ascii_takes_any_text_as_json_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    state.prepare_streams()
    told = json.dumps({"name": "rang é"}, ensure_ascii=False)
    with state.to_stdout() as stream:
        stream.write(told)
    assert raw.getvalue().isascii()
    assert json.loads(raw.getvalue()) == {"name": "rang é"}


def test_only_what_cannot_be_encoded_is_escaped() -> None:
    state.prepare_streams()
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", "tracekit")


def test_streams_that_the_caller_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has None in their place: messages go nowhere, and a result is an error."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(state, "silence_stdout", lambda: None)
    state.prepare_streams()
    sys.stderr.write("a note")
    sys.stderr.close()
    assert state.is_stdout_broken()
    with pytest.raises(UsageError, match="Bad file descriptor") as said, state.to_stdout() as out:
        out.buffer.write("a result")  # type: ignore[call-overload]  # refused whatever it is
    assert said.value.hint == "-o FILE"


def test_a_full_disk_is_an_error_and_a_reader_that_went_away_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silenced: list[bool] = []
    monkeypatch.setattr(state, "silence_stdout", lambda: silenced.append(True))
    monkeypatch.setattr(sys, "stdout", Failing(OSError(errno.ENOSPC, "No space left on device")))
    assert state.is_stdout_broken()
    with pytest.raises(UsageError, match="No space left on device"), state.to_stdout():
        pass
    assert silenced == [True]
    monkeypatch.setattr(sys, "stdout", Failing(BrokenPipeError()))
    with pytest.raises(BrokenPipeError), state.to_stdout():
        pass
    assert silenced == [True]
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not state.is_stdout_broken()


def test_what_is_still_buffered_goes_nowhere(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path_factory.mktemp("out") / "written"
    with path.open("w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        stream.write("buffered")
        state.silence_stdout()
        stream.flush()
    assert path.read_text(encoding="utf-8") == ""

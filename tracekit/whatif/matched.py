"""What every replay of matched calls answers, however its ranks are replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from tracekit.errors import InputError
from tracekit.whatif.calls import Call, Places, refused_because
from tracekit.whatif.causes import Cause
from tracekit.whatif.columns import Replayed
from tracekit.whatif.metrics import WhatIf, error_ratio


class MatchedWindow(Protocol):
    """One capture: its steps and calls, and how much of them is not known."""

    steps: list[int]
    dropped: list[int]
    calls: dict[int, Call]
    unmatched_count: int
    unmatched_ratio: float


WindowT = TypeVar("WindowT", bound=MatchedWindow)


class MatchedReplay(ABC, Generic[WindowT]):
    """One attempt, ready to be replayed.

    Raises InputError where no collective of the steady steps is matched on two ranks or more.
    """

    def __init__(self, windows: Sequence[WindowT], places: Places) -> None:
        self.windows = windows
        self.places = places
        if not any(w.calls for w in windows):
            raise InputError(
                "nothing to replay: no collectives of steady steps are matched across ranks",
                hint="profile all ranks in the same steps; tracekit query RUN match_coverage",
            )

    @property
    @abstractmethod
    def ranks(self) -> list[int]:
        """All ranks that are replayed."""

    @property
    @abstractmethod
    def base_ns(self) -> list[float]:
        """Measured length of each step."""

    @abstractmethod
    def step_s_without(self, ranks: Iterable[int]) -> float:
        """Length of a step if these ranks did what their peers do, in s."""

    @abstractmethod
    def _analysed(self, causes: Sequence[Cause], *, is_whole: bool) -> WhatIf: ...

    @property
    def job(self) -> Replayed:
        """What is known of all captures."""
        return Replayed(
            [s for w in self.windows for s in w.steps],
            [s for w in self.windows for s in w.dropped],
            [c for w in self.windows for c in w.calls.values()],
            self.base_ns,
            sum(w.unmatched_count for w in self.windows),
        )

    @cached_property
    def step_s(self) -> float:
        """Replayed length of a step as it was."""
        return self.step_s_without(())

    @property
    def error_ratio(self) -> float:
        """By how much the replay misses the measured step."""
        return error_ratio(self.job.base_s, self.step_s)

    @property
    def refused(self) -> str | None:
        """Why the replay must not be believed; None where it may."""
        return self.refused_at(self.step_s)

    def refused_at(self, step_s: float) -> str | None:
        """The same of a replay that gave a step this length as it was."""
        unmatched_ratio = max(w.unmatched_ratio for w in self.windows)
        return refused_because(self.job.base_s, step_s, unmatched_ratio)

    def analyse(self, causes: Sequence[Cause] = ()) -> WhatIf:
        """Replay in all the ways that the metrics need.

        UsageError where a cause names nothing of the job.
        """
        return self._analysed(causes, is_whole=True)

    def slowdown_by_rank(self) -> dict[int, float]:
        """As in the analysis, which takes longer: it replays the job without each of the worst."""
        return self._analysed((), is_whole=False).slowdown_by_rank

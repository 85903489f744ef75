"""From a draft to the steps as they were done: one after the other, some of them twice."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tracekit.simulate.history.draft import MAX_HICCUP, Draft, Floats, Ints

DAY_S = 86_400.0
HOUR_S = 3600.0


class Timeline(Struct, frozen=True):
    """Steps in the order in which they were done; times in seconds since the job began."""

    step: Ints
    attempt: Ints
    """From 0; each restart is one."""
    dur_s: Floats
    """Of the step and what lies before it."""
    end_s: Floats

    def when(self, first_step: int, last_step: int) -> tuple[float, float]:
        """When steps were done, the first time."""
        first = int(np.argmax(self.step == first_step))
        last = int(np.argmax(self.step == last_step))
        return float(self.end_s[first] - self.dur_s[first]), float(self.end_s[last])


def timeline(draft: Draft) -> Timeline:
    """The job that a draft becomes."""
    rng, noise = draft.rng, draft.noise
    parts, first = [], 1
    gap_s, factor_of = [0.0], [1.0]
    for restart in sorted(draft.restarts, key=lambda r: r.step):
        parts.append(np.arange(first, restart.step + 1))
        first = max(1, restart.step - restart.back_steps + 1)
        gap_s.append(restart.gap_s)
        factor_of.append(factor_of[-1] * restart.factor)
    parts.append(np.arange(first, draft.steps_count + 1))
    step = np.concatenate(parts)
    attempt = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    count = len(step)
    work = draft.factor[step] * np.array(factor_of)[attempt]
    rough_s = np.cumsum(draft.usual_s * work)
    work *= 1 + draft.drift_per_day * rough_s / DAY_S
    work *= _wander(draft, rough_s)
    work *= 1 + noise.sigma_ratio * rng.standard_normal(count)
    if noise.long_ratio:
        work *= np.where(rng.random(count) < noise.long_ratio, noise.long_factor, 1.0)
    hiccups = rng.random(count) < noise.tail_ratio
    lengths = np.minimum(rng.exponential(noise.tail_steps, count), MAX_HICCUP)
    work += np.where(hiccups, lengths, 0.0)
    dur_s = draft.usual_s * np.maximum(work, 0.2) + draft.extra_s[step]
    begins = np.concatenate([[True], np.diff(attempt) > 0])
    dur_s[begins] += draft.usual_s * rng.uniform(3, 10, int(begins.sum()))  # compiling, caches
    gaps = np.zeros(count)
    gaps[begins] = gap_s
    return Timeline(step, attempt, dur_s, np.cumsum(dur_s + gaps))


def _wander(draft: Draft, rough_s: Floats) -> Floats:
    noise, rng = draft.noise, draft.rng
    knots = np.arange(0.0, rough_s[-1] + 2 * HOUR_S, HOUR_S)
    levels = noise.wander_ratio * rng.standard_normal(len(knots))
    phase = rng.uniform(0, 2 * np.pi)
    daily = noise.daily_ratio * np.sin(2 * np.pi * rough_s / DAY_S + phase)
    wander: Floats = 1 + np.interp(rough_s, knots, levels) + daily
    return wander

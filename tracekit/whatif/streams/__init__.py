"""A replay of GPU jobs from what their traces hold: hosts that launch, streams that run.

    launched(x)  = the host's own time so far, plus its waits for the device
    start(x)     = max(launched(x) + latency, end(one before on its stream) + gap, its waits)
    end(x)       = start(x) + its duration
    end(c)       = max(start(c) of the members that it needs) + transfer   for a collective c

Traces do not say what a stream was told to wait for. Three things are taken to be so:

* A collective waits for the compute that was launched before it, as the process group of PyTorch
  makes it wait, unless the trace shows collectives of that kind starting earlier.
* An operation that began much later than its launch and its stream allow, at the moment when
  something on another stream ended, waited for that.
* Ranks and steps that launch the same operations in the same order wait for the same things: what
  one rank was never held up by is known from those that were. It must contradict none of them.

What begins late for no such reason is unexplained. The replay leaves it out, so the simulation
error is the part of the step that this model does not explain.

The ideal of a rank's step is the median of its peers, operation by operation: ranks of the same
stage that launch the same in that step. Of a step that differs from all others it is the typical
one of the rank's other steps.

Limits: a launch that blocks because the queue is full counts as the host's own time, as does
waiting in a collective on the host; a longer collective does not slow the kernels beside it.
"""

from tracekit.whatif.streams.scenarios import StreamReplay

__all__ = ["StreamReplay"]

"""Rules about NCCL, from lines to findings: firing, just below, and what must not accuse."""

from __future__ import annotations

import pytest

import nccl_logs as logs
from nccl_rules import NCCL_RULES, ONE_NODE, PAIR, Build, findings, say, text
from tracekit.rules import rule
from tracekit.rules.base import Facts, RuleOutcome
from tracekit.rules.nccl_facts import majority


@pytest.mark.parametrize("name", NCCL_RULES)
@pytest.mark.parametrize("version", ["2.4.8", "2.9.9", "2.18.5", "2.23.4", "2.30.7"])
def test_a_healthy_log_of_any_release_accuses_nobody(name: str, version: str, build: Build) -> None:
    assert findings(name, build(logs.job(version))) == ()


@pytest.mark.parametrize(
    "line",
    [
        "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
        "TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.",
        "NET/IB : No device found.",
        "NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "Using network Socket",
        "Bootstrap: Using eth0:10.0.0.1<0>",
        "Failed to initialize NET plugin IB",
        "NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)",
    ],
)
def test_a_normal_line_on_one_machine_accuses_nobody(line: str, build: Build) -> None:
    facts = build(text(ONE_NODE, say(line, 0, "h0"), say(line, 1, "h0")))
    assert not [f for name in NCCL_RULES for f in findings(name, facts)]


def test_lazy_connections_that_were_never_made_are_no_fault(build: Build) -> None:
    facts = build(text(PAIR))
    assert not [f for name in NCCL_RULES for f in findings(name, facts)]


@pytest.mark.parametrize("name", NCCL_RULES)
def test_without_logs_each_rule_says_what_it_needs(name: str) -> None:
    outcome = rule(name).run(Facts())
    assert outcome != RuleOutcome()
    assert outcome.not_checked[0].needs


def test_a_majority_is_more_than_half() -> None:
    assert majority([1, 1, 2]) == 1
    assert majority([1, 2]) is None
    assert majority([]) is None

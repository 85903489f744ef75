"""Whatever facts a test gives a rule, the rule is asked again with each of its queries failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from failed_queries import ask_with_each_query_failed

from tracekit.rules.base import Facts, Rule, RuleOutcome


@pytest.fixture(autouse=True)
def a_failed_query_is_never_fine() -> Iterator[None]:
    run = Rule.run

    def checked(self: Rule, facts: Facts) -> RuleOutcome:
        outcome = run(self, facts)
        ask_with_each_query_failed(run, self, facts, outcome)
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "run", checked)
        yield

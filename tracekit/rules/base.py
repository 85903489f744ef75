"""What every rule is written with: what it is given, what it declares and what it answers.

A rule sees query rows and the job description, nothing else: no file, no database. It answers
with findings and with what it could not check; an empty answer means "looked, and it is fine".
"""

from tracekit.rules.declared import Rule
from tracekit.rules.facts import Facts, JobFacts, Row
from tracekit.rules.outcome import NO_GPU, NO_STEPS, NOT_APPLICABLE, PROFILE, RuleOutcome

__all__ = [
    "NOT_APPLICABLE",
    "NO_GPU",
    "NO_STEPS",
    "PROFILE",
    "Facts",
    "JobFacts",
    "Row",
    "Rule",
    "RuleOutcome",
]

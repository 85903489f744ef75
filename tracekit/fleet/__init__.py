"""Many runs under one root, what each night makes of them, and what the nights say together.

- ``lake``: runs under one root, found by name, date, signature and host
- ``tables``, ``store``: the fleet's tables, as data and in Delta Lake
- ``rows``: what one run's diagnosis says, as rows of these tables
- ``rollup``: one night: which runs are new, their rows, written once
- ``night``, ``summary``: regressions and repeat offenders, and how they are told
"""

"""Whose each file is: the first stage of derive, ``place.place``, whose result is ``place.Placed``.

In order: ``sources`` reads what the files state; ``timebase`` puts on the epoch what the job
description dates; ``ranks`` says which rank a file is; ``attempts`` which files are one attempt
and which windows one capture; ``timer_jobs`` and ``log_jobs`` leave out what is of other jobs;
``hosts`` gives each file its machine and its clock; ``attempt_rows`` sums attempts up.

These fill in one ``sources.Source`` a file. After this stage nothing changes it.
"""

"""The scheduler as a Hypothesis state machine, and ``verify``: the only importer of hypothesis.

Users reach it as ``schedcheck.verify`` and ``schedcheck.machine``. Importing this package alone
imports no hypothesis, so that the pytest plugin can leave its options in ``context`` cheaply.
"""

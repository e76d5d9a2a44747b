"""A pytest plugin that prints the cases of DESIGN.md, section 5: how often tried, what survived.

Usage: python -m pytest tests/faults -m "slow or not slow" -p tests.faults.table
"""

from __future__ import annotations

import collections
import re

import pytest


def case_of(module):
    """The case that a module is about, as (number, what it is); None for other modules."""
    text = getattr(module, "CASE", None)
    if text is None:
        # The first sentence of its docstring says it.
        match = re.match(r"Case (\d+): (.*?)\.?(?:\s*\n\s*\n|$|\. )", module.__doc__ or "", re.S)
        text = f"{match[1]} {' '.join(match[2].split())}" if match else ""
    number, _, what = text.partition(" ")
    return (int(number), what) if number.isdigit() else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    case = case_of(getattr(item, "module", None))
    if case is not None:
        # With the report, so that it comes back from a worker of pytest-xdist as well.
        report.user_properties.append(("case", list(case)))
    return report


def pytest_terminal_summary(terminalreporter):
    cases = collections.defaultdict(lambda: [0, 0, set()])
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            properties = dict(getattr(report, "user_properties", ()))
            if "case" not in properties or (outcome == "passed" and report.when != "call"):
                continue
            of_case = cases[tuple(properties["case"])]
            if outcome == "skipped":
                of_case[2].add("some skipped")
                continue
            tries = int(properties.get("tries", 1))
            of_case[0] += tries
            of_case[1] += tries if outcome == "passed" else 0
    if not cases:
        return
    terminalreporter.section("faults")
    wide = min(76, max(len(what) for _, what in cases))
    terminalreporter.write_line(f"case  {'':{wide}}  tries  survived")
    for (number, what), (tries, survived, notes) in sorted(cases.items()):
        what = what if len(what) <= wide else what[: wide - 3] + "..."
        says = "all" if survived == tries else f"{survived}"
        says = ", ".join([says if tries else "-", *sorted(notes)])
        terminalreporter.write_line(f"{number:>4}  {what:{wide}}  {tries:>5}  {says}")

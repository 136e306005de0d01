"""How fast pull requests are diagnosed: the pure classifier, on one core.

The cases are of all states and of every rule, with histories of nine lines. The processor's time
counts, as nothing here waits. The floor makes only what a diagnosis is returned in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import product

from bench.plan import Bench, Metrics
from towline.pulls.budgets import none_used
from towline.pulls.lifecycle import State
from towline.pulls.staleness import THRESHOLD_SECONDS
from towline.reconciler.rules import Case, Diagnosis, Finding, Past, classify

_SECONDS = 4.0
_NOW = 100_000.0
_HISTORY = tuple(
    Past(happening, float(at))
    for at, happening in enumerate(
        (
            "PR_OPENED", "CHECKS_STARTED", "CHECKS_FAILED", "REMEDIATION_REBUILD",
            "CHECKS_STARTED", "CHECKS_PASSED", "POLICY_STARTED", "POLICY_PASSED",
            "APPROVAL_GRANTED",
        )
    )
)  # fmt: skip
_PATH: tuple[State, ...] = (
    "CREATED", "CHECKS_RUNNING", "CHECKS_FAILED", "CHECKS_RUNNING", "CHECKS_PASSED",
    "POLICY_EVALUATING", "POLICY_PASSED", "APPROVED",
)  # fmt: skip


def _cases() -> Iterator[Case]:
    unused = none_used()
    either = (False, True)
    for state, behind, transient, fresh in product(THRESHOLD_SECONDS, either, either, either):
        yield Case(
            state=state,
            substatus="SOD_FAILURE" if state == "POLICY_FAILED" and transient else None,
            since=_NOW - 1 if fresh else 0.0,
            history=_HISTORY,
            path=_PATH,
            conflicts=behind and transient,
            behind=behind,
            transient=transient,
            evidence="connection timed out",
            counts=unused,
            lifetime=unused,
        )


def _rate(bench: Bench, decide: Callable[[Case], object]) -> Metrics:
    cases, done, seconds = list(_cases()), 0, bench.seconds(_SECONDS)
    began = time.process_time()
    while (spent := time.process_time() - began) < seconds:
        for case in cases:
            decide(case)
        done += len(cases)
    return {"per_second": done / spent, "us": spent / done * 1e6}


def ours(bench: Bench) -> Metrics:
    return _rate(bench, lambda case: classify(case, _NOW))


def floor(bench: Bench) -> Metrics:
    def answer(case: Case) -> Diagnosis:
        finding = Finding("fallthrough", "NO_ACTION", "", case.evidence)
        return Diagnosis(finding, finding.action, finding.reason, None, None)

    return _rate(bench, answer)

"""Planted bugs of the tow: budgets, its breakers, the lifecycle, remedies and escalations."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_BREAKERS: Final = "towline.remediation.breakers"
_BUDGETS: Final = "towline.pulls.budgets"
_CHANGES: Final = "towline.remediation.record_changes"
_ESCALATE: Final = "towline.remediation.escalation:Escalations.escalate"
_FOLD: Final = "towline.pulls.apply_event"
_REPLACEMENT: Final = "towline.remediation.replacement"
_SWEEP: Final = "towline.reconciler.sweep"
_TRANSITIONS: Final = "towline.pulls.transitions"

breaker = partial(Mutation, "tow", area="breaker")
budget = partial(Mutation, "tow", area="budgets")
escalation = partial(Mutation, "tow", area="escalation")
lifecycle = partial(Mutation, "tow", area="lifecycle")
remedy = partial(Mutation, "tow", area="remedies")

ROWS: Final = (
    breaker("half-a-leave-kept", "what was not used runs out",
        [Edit(f"{_BREAKERS}:Breakers.ask", "await Leave(permits).ignored()", "pass")],
        not_found="60 seeds"),
    breaker("leave-not-given-back", "each outcome was told above",
        [body(f"{_BREAKERS}:Leave.ignored", "return None")]),
    breaker("outage-is-no-failure", "a failure is what the forge calls one",
        [Edit(f"{_SWEEP}:_tell", 'result.outcome == "unavailable"', 'result.outcome == "failed"'),
         Edit(f"{_SWEEP}:_tell", '("done", "pending")', '("done", "pending", "unavailable")')]),
    breaker("told-at-each-trip", "one message for each time that it opens",
        [Edit(f"{_BREAKERS}:_notice_job", 'report.opening_us, f"{report.name} {report.opening_us}"',
              'report.opened_us, f"{report.name} {report.opened_us}"')]),
    budget("arrived-after-all-is-free", "a try that was given back is given back",
        [body(f"{_CHANGES}:_spent_after_all", "return record")]),
    budget("being-asked-forgives-bots", "a bot that begins again has a fresh budget",
        [Edit(f"{_BUDGETS}:_RESET_BY", '"retrigger_policy_bot": frozenset({',
              '"retrigger_policy_bot": frozenset({"POLICY_EVALUATING", '),
         Edit(f"{_BUDGETS}:_RESET_BY", 'frozenset({"APPROVED"})',
              'frozenset({"POLICY_PASSED", "APPROVED"})')]),
    budget("given-back-twice", "an intent that stays is as it was",
        [Edit(f"{_CHANGES}:ended", "intent = intent._replace(spent=False)", "pass")]),
    budget("new-run-forgives-rebuilds", "counts start anew when the checks do",
        [Edit(f"{_BUDGETS}:_RESET_BY", 'frozenset({"CHECKS_PASSED"})',
              'frozenset({"CHECKS_RUNNING", "CHECKS_PASSED"})')]),
    budget("one-life-try-too-many", "a cap is exceeded when it is passed",
        [Edit(f"{_BUDGETS}:exhausted", "ever >= cap", "ever > cap")]),
    budget("one-try-too-many", "a budget of three is used up after three",
        [Edit(f"{_BUDGETS}:exhausted", "used >= most", "used > most")]),
    budget("push-forgives-reopening", "a person's push starts everything anew",
        [body(f"{_TRANSITIONS}:after_persons_push", "return none_used()")]),
    budget("refund-below-zero", "what was counted can be taken off again",
        [Edit(f"{_CHANGES}:_one_less", "max(0, counts.get(strategy, 0) - 1)",
              "counts.get(strategy, 0) - 1")]),
    budget("reopened-for-each-pull", "counts belong to the pull request",
        [Edit("towline.reconciler.diagnosis_input", "reopened=await", "reopened=0 * await")]),
    escalation("marked-before-told", "the mark is written first, so that it is told once",
        [Edit(_ESCALATE, "notice = escalation(record, events)",
              "await self._store.change(ref, _marked(key))\n"
              "        notice = escalation(record, events)"),
         Edit(_ESCALATE, "await self._store.change(ref, _marked(key)) return", "return")]),
    escalation("told-at-each-try", "a job that is run again has told nobody",
        [Edit(_ESCALATE, "any(event.key == _mark(key) for event in events)", "False")]),
    lifecycle("bot-calls-back", "new commits restart the checks",
        [Edit(f"{_TRANSITIONS}:_Journey.take", "by_person=told.by_person", "by_person=True")]),
    lifecycle("clock-not-started-anew", "it is stale since it last did well",
        [Edit(f"{_TRANSITIONS}:entered", "since_us=now_us", "since_us=record.since_us")]),
    lifecycle("hope-overrules-events", "a remedy that was taken sets its state",
        [Edit(f"{_CHANGES}:hoped", "or overtaken", "")]),
    lifecycle("late-check-counts", "the last word on a check is the one that came last",
        [Edit(_FOLD, "not is_newer(before, word)", "False")]),
    lifecycle("late-word-counts", "events come in their order",
        [body(f"{_FOLD}:_is_before", "return False")]),
    lifecycle("merged-taken-for-closed", "what is not open any more is closed",
        [Edit("towline.pulls.drift:actual_state", 'return "MERGED"', 'return "CLOSED"')]),
    lifecycle("no-catching-up", "what came too early comes again",
        [body(f"{_TRANSITIONS}:_Journey.catch_up", "return None")]),
    lifecycle("nothing-implied", "each event has its line in the table",
        [Edit("towline.pulls.lifecycle:move", "_IMPLIED.get((state, happening))", "None")]),
    lifecycle("old-failure-believed", "a failed check has failed",
        [body(f"{_TRANSITIONS}:doubted_since", "return None")]),
    lifecycle("own-echo-heard", "a status is a status, whoever sends it",
        [body(f"{_TRANSITIONS}:_is_our_echo", "return False")]),
    remedy("anybodys-close-is-ours", "a closed one with our intent was closed by us",
        [body(f"{_REPLACEMENT}:_ours", "return True")], not_found="120 seeds"),
    remedy("asks-again-on-silence", "one more try costs nothing",
        [body("towline.remediation.service:Remediator._patiently", """
            try:
                return await self._once(record, sight)
            except Unavailable:
                return await self._once(record, sight)
        """)]),
    remedy("beside-another-remedy", "who decides has looked for an open intent",
        [Edit(f"{_CHANGES}:why_not", "record.intent is not None", "False")]),
    remedy("closed-beside-its-twin", "there is one pull request for a vulnerability",
        [body(f"{_REPLACEMENT}:Closer._twin", "return None")]),
    remedy("decided-long-ago", "a decision holds",
        [Edit(f"{_CHANGES}:why_not", "order.decided is not None", "False")]),
    remedy("nobody-looks-after-intents", "whoever acts looks for the effect",
        [body(f"{_SWEEP}:Reconciler._finish_what_is_due", "return None")]),
)  # fmt: skip

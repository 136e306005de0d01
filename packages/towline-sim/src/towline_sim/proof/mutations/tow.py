"""The safeguards of the tow."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_BREAKERS: Final = "towline.remediation.breakers:Breakers"
_CHANGES: Final = "towline.remediation.record_changes"
_REMEDIATOR: Final = "towline.remediation.service:Remediator"
_TRACKER: Final = "towline.pulls.tracker:Tracker"
_TRANSITIONS: Final = "towline.pulls.transitions"

row = partial(Mutation, "tow")

ROWS: Final = (
    row("acts-before-intent", "the intent is recorded before the action is made",
        [body(f"{_REMEDIATOR}._begin", """
            record = await self._store.read(ref.repo, ref.number)
            now_us = self._clock.now_us()
            change = records.begun(order, 1_000_000)(record, now_us)
            if change is None:
                return Remedied("refused", "", record), now_us
            return Remedied("pending", "", change.record), now_us
        """)]),
    row("acts-without-a-look", "what is there already is not asked for",
        [Edit(f"{_REMEDIATOR}.act",
              "needless(order.strategy, facts, self._of(ref).signals, stuck)", "None")]),
    row("breaker-ignored", "nothing is done while the breaker is open",
        [body(f"{_BREAKERS}.ask", 'return Leave([]), ""'),
         body(f"{_BREAKERS}.state", 'return "closed"')]),
    row("circles-not-noticed", "what goes round in circles is a person's matter",
        [Edit("towline.reconciler.rules", "oscillates(case.path)", "None")]),
    row("command-in-any-state", "a command is checked again when its job runs",
        [Edit("towline.commands.service", "(why_not := refusal(command, record.state))",
              "(why_not := None)"),
         Edit("towline.commands.service", "refusal(command, record.state) or missing",
              "missing")]),
    row("counted-after-success", "a try is counted before it is made",
        [Edit(f"{_CHANGES}:begun", "if order.spends:", "if False:"),
         Edit(f"{_CHANGES}:begun", "spent=order.spends", "spent=False")]),
    row("drift-not-corrected", "what a lost event would have told is found by looking",
        [body("towline.pulls.drift:correct", "return None")]),
    row("early-events-lost", "what comes before its pull request is recorded waits for it",
        [Edit(f"{_TRACKER}._aim", "waits_for(event, known, towing)", "()")]),
    row("effect-not-looked-for", "an effect is looked for before a try is given back",
        [body(f"{_REMEDIATOR}._seen", "return False")], seed=304),
    row("ended-lives-again", "terminal states are final",
        [Edit("towline.pulls.drift:correct", "record.state in TERMINAL", "False"),
         Edit("towline.pulls.lifecycle:move", 'return Move("late", state, state)',
              'target = RESULT_OF.get(happening, state)\n'
              '        verdict = "late" if target == state else "moved"\n'
              '        return Move(verdict, state, target, (target,))'),
         Edit(f"{_TRANSITIONS}:decide", "record.state in TERMINAL", "False"),
         Edit(f"{_TRANSITIONS}:entered", "if target in TERMINAL", "if False")]),
    row("escalated-without-job", "an escalation and its job are written together",
        [body("towline.pulls.store:PullStore.change", """
            jobs = []

            def without_jobs(record, now_us):
                change = decide(record, now_us)
                if change is None:
                    return None
                jobs[:] = change.jobs
                return Change(change.record, change.events)

            changed, _ = await self._database.transact(lambda: _changing(ref, without_jobs))
            if jobs:
                await self._database.run(ENQUEUE, jobs)
            return changed
        """)]),
    row("green-for-good", "a check that begins or fails later leads back from green",
        [body(f"{_TRANSITIONS}:led_back", "return None")]),
    row("hope-resets-budget", "only a state that was observed resets a count",
        [Edit(f"{_CHANGES}:hoped", "return move_to(record, target, now_us)",
              "moved = move_to(record, target, now_us)\n"
              "    return moved._replace(counts=after_move(moved.counts, [moved.state]))")]),
    row("lifetime-cap-off", "over its life a pull request gets so many tries and no more",
        [Edit("towline.pulls.budgets:exhausted", "LIFETIME_FACTOR", "1000")]),
    row("lost-reply-not-read-back", "what nobody answered is looked for before it is tried again",
        [Edit(f"{_REMEDIATOR}._end", "keeps_intent=keeps_intent", "keeps_intent=False")],
        seed=192),
    row("observer-acts", "who only observes does nothing",
        [body("towline.reconciler.sweep:Handling._observe", """
            from types import SimpleNamespace

            if diagnosis.action not in STRATEGY_OF:
                return so_far
            known = SimpleNamespace(failed=())
            return await self._act(record, None, diagnosis, known, mode, so_far)
        """)]),
    row("parked-for-good", "who parks an event looks again whether its pull request is there",
        [body(f"{_TRACKER}._park", """
            head = head_of(event)
            await self._parking.park(
                [Parked.of(stored, place, event, number, head) for number in numbers]
            )
        """)]),
    row("remedy-without-patience", "after a remedy the clock of staleness starts anew",
        [Edit(f"{_CHANGES}:hoped", "return move_to(record, target, now_us)",
              "return move_to(record, target, now_us)._replace(since_us=record.since_us)")]),
    row("same-event-again", "an event is applied once for its key",
        [Edit("towline.pulls.sql:KNOWN_EVENT", "AND e.key = b.key", "AND e.key = b.key || 'x'")]),
    row("tries-not-counted", "each try costs one of its budget",
        [body("towline.pulls.budgets:spent", "return counts")]),
    row("two-writers", "a record is changed only in the version that was read",
        [Edit("towline.pulls.sql:UPDATE", "AND towline_prs.version = b.expected", "")]),
)  # fmt: skip

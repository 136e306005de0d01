"""The safeguards of fix runs."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_HANDLER: Final = "towline.fix.pipeline:FixHandler"
_PUBLISH: Final = "towline.fix.publish"
_RUNS: Final = "towline.fix.store"
_NEVER_COOL: Final = body(f"{_HANDLER}._cooling", "return 0")
_WORKS_ON: Final = body("towline.jobs.runner:Held.abandon", "return None")
_NO_LOCK: Final = """
    class NoLock:
        def check(self) -> None:
            return None
"""

row = partial(Mutation, "fix")

ROWS: Final = (
    row("attempts-of-a-run-not-counted", "attempts of a run are counted when they begin",
        [Edit(f"{_RUNS}:BEGIN", "attempt_count = attempt_count + 1", "attempt_count = 1")]),
    row("attempts-of-a-run-without-end", "a run has so many attempts and no more",
        [Edit(f"{_RUNS}:BEGIN", "AND towline_runs.attempt_count < b.most", "")]),
    row("begun-by-two-jobs", "of two jobs that saw the same run one begins",
        [Edit(f"{_RUNS}:BEGIN", "AND {_SEEN}", ""), Edit(f"{_RUNS}:USE_UP", "AND {_SEEN}", "")]),
    row("blocked-is-ignored", "a blocked run stays blocked until it is unblocked",
        [Edit(f"{_HANDLER}._gated", 'if run.state == "blocked":',
              'run = run._replace(state="waiting")\n        if run.state == "blocked":'),
         Edit(f"{_RUNS}:BEGIN", "AND {_LIVE}", "")]),
    row("cooldown-by-the-own-clock", "the store's times are compared with the store's clock",
        [body(f"{_RUNS}:RunStore.beside", """
            seen = await self._database.transact(lambda: _beside(errand, but))
            return seen._replace(now_us=self._database.clock.now_us())
        """)]),
    row("cooldown-off", "after an attempt a run is left alone for a while", [_NEVER_COOL]),
    row("finish-any-token", "only the newest attempt ends a run",
        [Edit(f"{_RUNS}:_OURS", "AND towline_runs.token = b.token", ""), _WORKS_ON]),
    row("opening-not-written-down", "what will be opened is written down before it is",
        [body(f"{_RUNS}:RunStore.intend", 'return "written"')], seed=867),
    row("openings-of-others-not-seen", "what another run was about to open is looked for",
        [Edit(f"{_RUNS}:BESIDE", "OR EXISTS (", "OR 1 = 0 AND EXISTS (")], seed=867),
    row("own-pull-not-adopted", "a pull request that is open for the branch is adopted",
        [body("towline.forges.github.publish:GitHubPublisher._find", "return None")], seed=237),
    row("propose-beside-others", "what two runs are for is proposed by one of them at a time",
        [body(f"{_PUBLISH}:Publishing.run",
              f"{_NO_LOCK}\n    return await self._propose(attempt, NoLock())"),
         body("towline.fix.model:Beside.marks", "return frozenset()")]),
    row("push-without-lock", "a repository is pushed to by one at a time",
        [body("towline.git.repository:GitRepositories.push",
              f"{_NO_LOCK}\n    return await self._push(workspace, branch, commit, NoLock())")],
        seed=230),
    row("refusal-forgotten-in-a-crash", "a refusal that was written down holds",
        [body(f"{_HANDLER}._refused", "return None")], seed=867),
    row("refusals-are-retried", "what was refused is refused for good",
        [Edit(f"{_HANDLER}._stage", "return end",
              'if end.outcome == "refused":\n'
              '            raise Transient(end.reason)\n'
              '        return end'),
         body(f"{_HANDLER}._refused", "return None")]),
    row("refused-sandbox-costs-an-attempt", "where nothing may be run no attempt is counted",
        [Edit(f"{_RUNS}:FINISH", "attempt_count - b.uncounted",
              "attempt_count - 0 * b.uncounted")]),
    row("row-not-looked-at-again", "an attempt that was superseded opens nothing",
        [body(f"{_PUBLISH}:Publishing._still_ours", "return attempt.run"),
         Edit(f"{_RUNS}:TOUCH", "{_OURS}", "towline_runs.run_key = b.run_key"), _WORKS_ON,
         body("towline_once.coordination.lease:Lease._lose", "return None")]),
    row("run-for-each-delivery", "one failure has one run",
        [Edit(f"{_RUNS}:CREATE", """{", ".join(f"b.{name}" for name in NEW)}""",
              """b.run_key || b.event_id, {", ".join(f"b.{n}" for n in list(NEW)[1:])}""")]),
    row("stages-not-kept", "a stage that passed is not repeated",
        [body(f"{_HANDLER}._known", "return None")]),
    row("stranded-for-ever", "a run whose job has died is given another",
        [body(f"{_HANDLER}.revive", "return 0")]),
    row("twin-is-not-looked-for", "what is proposed and undecided is not proposed again",
        [body("towline.fix.siblings:look_beside",
              "return Looked(await runs.beside(attempt.run.errand, attempt.run.run_key))"),
         _NEVER_COOL]),
)  # fmt: skip

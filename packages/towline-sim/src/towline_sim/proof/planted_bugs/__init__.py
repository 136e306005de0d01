"""Bugs that were planted after the scenarios were written, by somebody who had not read them.

They are not safeguards taken out one by one, but slips as they are made in a refactoring: a
condition that seemed to say the same, a clock read a line later, one off. The rule of such a row is
what whoever made it had in mind. What a row is, and how it is applied, is in `mutations`.
"""

from __future__ import annotations

from towline_sim.proof.mutations import Mutation, by_name


def every_planted() -> list[Mutation]:
    from towline_sim.proof.planted_bugs import coordination, fix, jobs, keys, mesh, polls, tow

    subjects = (keys, coordination, jobs, tow, mesh, polls, fix)
    return [row for subject in subjects for row in subject.ROWS]


def all_planted() -> dict[str, Mutation]:
    """By name, those that break a promise and are found."""
    return by_name([row for row in every_planted() if not row.not_found])

"""The levers of the demo's strip: trouble by hand, and the pace of time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from towline.dashboard.collaborators import Figure, Lever
from towline_sim.demo.clock import FASTEST, DemoClock
from towline_sim.demo.sights import Scenes
from towline_sim.demo.world import BAD_HOOKS, NO_APPROVER, USUAL_APPROVER, USUAL_HOOKS, DemoWorld
from towline_sim.github.faults import HttpFault
from towline_sim.github.server import GitHubSim

MORE: Final = 10
_FASTER: Final = 4.0


class Levers:
    """The strip of the demo's pages."""

    def __init__(self, clock: DemoClock, world: DemoWorld, sim: GitHubSim, scenes: Scenes) -> None:
        self.code = secrets.token_urlsafe(16)
        self.key = ""
        self._clock = clock
        self._world = world
        self._sim = sim
        self._scenes = scenes
        self._outage = HttpFault(kind="failing", status=503, message="Service Unavailable")
        self._acts: Mapping[str, Callable[[], None]] = {
            "jenkins": lambda: world.set_jenkins(down=not world.jenkins_down),
            "github": self._turn_github,
            "webhooks": self._turn_webhooks,
            "approver": self._turn_approver,
            "conflict": world.make_conflict,
            "more": self._open_more,
            "pause": lambda: clock.set_speed(0.0 if clock.speed else clock.usual),
            "faster": self._turn_speed,
        }

    def figures(self) -> Sequence[Figure]:
        seen, speed = self._scenes, self._clock.speed
        pace = f"{speed:g} × real time" if speed else "paused"
        return (
            Figure("Time", pace),
            Figure("Merged", str(seen.merged)),
            Figure("Healed", str(seen.healed)),
            Figure("Escalated", str(seen.escalated)),
            Figure("Breaker", seen.breaker, seen.breaker != "closed"),
        )

    def levers(self) -> Sequence[Lever]:
        down, deaf = self._world.jenkins_down, self._hooks_are_bad
        return (
            _turned("jenkins", "Jenkins down", "Builds fail, and rebuilds are not answered", down),
            _turned("github", "GitHub down", "Its API answers 503", self._github_is_down),
            _turned("webhooks", "Lose webhooks", "Most webhooks never arrive", deaf),
            _turned("approver", "Stop approver", "The bot does not approve", self._no_approver),
            Lever("conflict", "Make a conflict", "A person pushes to main what clashes"),
            Lever("more", f"Open {MORE} more", f"{MORE} pull requests at once"),
            _turned("pause", "Pause", "The demo's time stands still", self._clock.speed == 0),
            _turned("faster", f"Faster × {_FASTER:g}", "Time goes faster", self._is_fast),
        )

    def pull(self, name: str) -> bool:
        act = self._acts.get(name)
        if act is not None:
            act()
        return act is not None

    # ------------------------------------------------------------------ positions

    @property
    def _github_is_down(self) -> bool:
        return self._outage in self._sim.faults

    @property
    def _hooks_are_bad(self) -> bool:
        return self._world.hooks.faults is BAD_HOOKS

    @property
    def _no_approver(self) -> bool:
        return self._world.town.approver.habit is NO_APPROVER

    @property
    def _is_fast(self) -> bool:
        return self._clock.speed > self._clock.usual

    def _turn_github(self) -> None:
        self._sim.faults[:] = [] if self._github_is_down else [self._outage]

    def _turn_webhooks(self) -> None:
        self._world.hooks.faults = USUAL_HOOKS if self._hooks_are_bad else BAD_HOOKS

    def _turn_approver(self) -> None:
        self._world.town.approver.habit = USUAL_APPROVER if self._no_approver else NO_APPROVER

    def _open_more(self) -> None:
        for _ in range(MORE):
            self._world.open("chance")

    def _turn_speed(self) -> None:
        usual = self._clock.usual
        self._clock.set_speed(usual if self._is_fast else min(usual * _FASTER, FASTEST))


def _turned(name: str, label: str, hint: str, on: bool) -> Lever:
    return Lever(name, label, hint, on)

"""The world's Jenkins as a CI that builds when it is asked to, in process."""

from __future__ import annotations

from collections.abc import Mapping

from towline.integrations.ci import Build, CiRefused, CiUnavailable
from towline_sim.actors.jenkins import Jenkins, JenkinsBuild, JenkinsDown, JenkinsRefusal
from towline_sim.github.fault_dice import FaultDice


class WorldCi:
    def __init__(self, jenkins: Jenkins, faults: FaultDice | None = None) -> None:
        self._jenkins = jenkins
        self._faults = faults or FaultDice()
        self.calls = 0

    async def build(self, job: str, parameters: Mapping[str, str]) -> Build:
        lost = self._call(write=True)
        try:
            build = self._jenkins.build(job, parameters)
        except JenkinsDown as down:
            raise CiUnavailable("Jenkins does not answer") from down
        except JenkinsRefusal as refusal:
            raise CiRefused(str(refusal)) from refusal
        if lost:
            raise CiUnavailable("Jenkins did not answer in time")
        return self._shown(build)

    async def read(self, url: str) -> Build:
        self._call(write=False)
        return self._shown(self._find(url))

    async def log(self, url: str, most_bytes: int) -> str:
        self._call(write=False)
        return self._find(url).log[-most_bytes:]

    async def aclose(self) -> None:
        """Nothing is open."""

    def _call(self, *, write: bool) -> bool:
        """Whether the answer will be lost."""
        self.calls += 1
        fault = self._faults.draw("jenkins", self._jenkins.world.now, write=write)
        if self._jenkins.down or (fault is not None and fault.kind not in ("slow", "lost_reply")):
            raise CiUnavailable("Jenkins does not answer")
        return fault is not None and fault.kind == "lost_reply"

    def _find(self, url: str) -> JenkinsBuild:
        number = url.rstrip("/").rpartition("/")[2]
        build = self._jenkins.builds.get(int(number)) if number.isdigit() else None
        if build is None or self._jenkins.url(build) != url:
            raise CiRefused("Jenkins has no such build")
        return build

    def _shown(self, build: JenkinsBuild) -> Build:
        return Build(self._jenkins.url(build), build.state, build.number)

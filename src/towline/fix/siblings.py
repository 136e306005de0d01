"""Other runs for the same thing: what they have at the forge, or may have any moment.

PLAN asks before it begins, and PR before it opens anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from towline.fix.attempt import Attempt
from towline.fix.model import Beside, comes_first
from towline.fix.store import RunStore
from towline.forges.base import Forge, Publisher
from towline.forges.snapshot import PullRef, Snapshot


class Looked(NamedTuple):
    """What other runs for the same thing have at the forge, or may have any moment."""

    beside: Beside
    open_url: str | None = None
    """Of a pull request that nobody has decided on yet."""
    awaited: str | None = None
    """The run that is about to open one, and comes first."""


async def look_beside(
    runs: RunStore,
    forges: Mapping[str, Forge],
    publishers: Mapping[str, Publisher],
    attempt: Attempt,
) -> Looked:
    errand, awaited = attempt.errand, None
    beside = await runs.beside(attempt.run.errand, attempt.run.run_key)
    forge, publisher = forges.get(errand.forge), publishers.get(errand.forge)
    urls: dict[PullRef, str | None] = {}
    for rival in beside.runs:
        number, url = rival.last_pr_number, rival.last_pr_url
        if rival.opening is not None and publisher is not None:
            found = await publisher.find_pull(errand.repo, *rival.opening)
            number, url = (found.number, found.url) if found is not None else (None, None)
            if found is None and comes_first(rival, attempt.run):
                awaited = rival.run_id
        if number is not None and number != errand.replaces:
            urls[PullRef(errand.forge, errand.repo, number)] = url
    seen = await forge.look(list(urls)) if forge is not None and urls else {}
    still_open = [url for ref, url in urls.items() if ref in seen and _is_open(seen[ref])]
    return Looked(beside, still_open[0] if still_open else None, awaited)


def _is_open(sight: Snapshot) -> bool:
    return sight.pull.state == "open"

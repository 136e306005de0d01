"""The question in GraphQL that looks at dozens of pull requests, and its answer in REST's shape.

Pure. GitHub shows the same things in two languages; here the one is put into the other, so that
only one of them has to be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from towline.forges import payload
from towline.forges.github.snapshot import NEWEST_COMMENTS, Seen, WorkflowRun
from towline.forges.payload import Object
from towline.forges.snapshot import PullRef
from towline_once.canonical_json import JsonValue

_WHO: Final = "{ __typename login }"
_MERGEABILITY: Final = "number state mergeable mergeStateStatus"
_PULL: Final = f"""
fragment pull on PullRequest {{
  {_MERGEABILITY}
  title body url isDraft merged mergedAt updatedAt isCrossRepository
  headRefName headRefOid baseRefName reviewDecision
  author {_WHO}
  mergeCommit {{ oid }}
  labels(first: 100) {{ nodes {{ name }} }}
  latestOpinionatedReviews(first: 50) {{
    pageInfo {{ hasNextPage }}
    nodes {{ state body url submittedAt updatedAt author {_WHO} commit {{ oid }} }}
  }}
  comments(last: {NEWEST_COMMENTS}) {{
    nodes {{ databaseId body url createdAt updatedAt author {_WHO} }}
  }}
  commits(last: 1) {{ nodes {{ commit {{ ...checks }} }} }}
}}
fragment checks on Commit {{
  oid
  statusCheckRollup {{
    contexts(first: 100) {{
      pageInfo {{ hasNextPage }}
      nodes {{
        __typename
        ... on CheckRun {{
          databaseId name status conclusion startedAt completedAt detailsUrl url title summary
          checkSuite {{ databaseId app {{ slug }} }}
        }}
        ... on StatusContext {{ context state description targetUrl createdAt }}
      }}
    }}
  }}
  checkSuites(first: 50) {{
    pageInfo {{ hasNextPage }}
    nodes {{
      databaseId status conclusion updatedAt
      app {{ slug }}
      workflowRun {{ databaseId }}
    }}
  }}
}}
"""
_MERGEABLE: Final = f"fragment pull on PullRequest {{ {_MERGEABILITY} }}"
_PENDING: Final = frozenset({"EXPECTED", "PENDING"})


class Question(NamedTuple):
    """`places` are the names that the answer has each pull request under."""

    query: str
    variables: Mapping[str, str]
    places: Mapping[PullRef, tuple[str, str]]

    def body(self) -> dict[str, object]:
        return {"query": self.query, "variables": dict(self.variables)}


class Told(NamedTuple):
    """What an answer shows of one, and which of its lists go on."""

    seen: Seen
    more_checks: bool
    more_suites: bool
    more_reviews: bool


def question(refs: Sequence[PullRef], *, only_mergeability: bool = False) -> Question:
    repos: dict[str, list[PullRef]] = {}
    for ref in refs:
        repos.setdefault(ref.repo, []).append(ref)
    variables: dict[str, str] = {}
    places: dict[PullRef, tuple[str, str]] = {}
    asked = []
    for index, (repo, pulls) in enumerate(repos.items()):
        owner, _, name = repo.partition("/")
        variables |= {f"o{index}": owner, f"n{index}": name}
        for ref in pulls:
            places[ref] = (f"r{index}", f"p{int(ref.number)}")
        inside = " ".join(f"{places[ref][1]}: {_one(ref)}" for ref in pulls)
        asked.append(f"r{index}: repository(owner: $o{index}, name: $n{index}) {{ {inside} }}")
    declared = ", ".join(f"${name}: String!" for name in variables)
    fragments = _MERGEABLE if only_mergeability else _PULL
    rate = "rateLimit { cost limit remaining resetAt }"
    query = f"query({declared}) {{ {rate} {' '.join(asked)} }}\n{fragments}"
    return Question(query, variables, places)


def _one(ref: PullRef) -> str:
    return f"pullRequest(number: {int(ref.number)}) {{ ...pull }}"


def mergeability(node: Object) -> Object:
    """The part of a pull request that GitHub works out in the background."""
    mergeable = {"MERGEABLE": True, "CONFLICTING": False}.get(str(node.get("mergeable")))
    state = str(node.get("mergeStateStatus") or "UNKNOWN").lower()
    return {"mergeable": mergeable, "mergeable_state": state}


def told(repo: str, node: Object) -> Told:
    commit = _head_commit(node)
    contexts = payload.inner(payload.inner(commit, "statusCheckRollup"), "contexts")
    suites = payload.inner(commit, "checkSuites")
    reviews = payload.inner(node, "latestOpinionatedReviews")
    seen = Seen(
        repo=repo,
        pull=_pull(repo, node),
        runs=[_run(one, node, commit) for one in _nodes(contexts, "CheckRun")],
        suites=[_suite(one, node, commit) for one in _nodes(suites)],
        statuses=[_status(one) for one in _nodes(contexts, "StatusContext")],
        reviews=[_review(one) for one in _nodes(reviews)],
        comments=[_comment(one) for one in _nodes(payload.inner(node, "comments"))],
        workflows=_workflows(_nodes(suites)),
        review_decision=payload.text(node, "reviewDecision"),
    )
    return Told(seen, _goes_on(contexts), _goes_on(suites), _goes_on(reviews))


def _head_commit(node: Object) -> Object:
    """Nothing, if the list of commits lags behind the head."""
    last = _nodes(payload.inner(node, "commits"))
    commit = payload.inner(last[-1], "commit") if last else {}
    return commit if commit.get("oid") == node.get("headRefOid") else {}


def _pull(repo: str, node: Object) -> Object:
    fork = bool(node.get("isCrossRepository"))
    merged = bool(node.get("merged"))
    return {
        **mergeability(node),
        "number": node.get("number"),
        "state": "open" if node.get("state") == "OPEN" else "closed",
        "merged": merged,
        "merged_at": node.get("mergedAt"),
        "updated_at": node.get("updatedAt"),
        "title": node.get("title"),
        "body": node.get("body"),
        "draft": node.get("isDraft"),
        "html_url": node.get("url"),
        "user": _actor(node),
        "labels": list(_nodes(payload.inner(node, "labels"))),
        "head": {
            "sha": node.get("headRefOid"),
            "ref": node.get("headRefName"),
            "repo": None if fork else {"full_name": repo},
        },
        "base": {"ref": node.get("baseRefName"), "repo": {"full_name": repo}},
        "merge_commit_sha": payload.inner(node, "mergeCommit").get("oid") if merged else None,
    }


def _run(run: Object, pull: Object, commit: Object) -> Object:
    suite = payload.inner(run, "checkSuite")
    return {
        "id": run.get("databaseId"),
        "name": run.get("name"),
        "head_sha": commit.get("oid"),
        "status": _lower(run.get("status")),
        "conclusion": _lower(run.get("conclusion")),
        "started_at": run.get("startedAt"),
        "completed_at": run.get("completedAt"),
        "details_url": run.get("detailsUrl"),
        "html_url": run.get("url"),
        "output": {"title": run.get("title"), "summary": run.get("summary")},
        "check_suite": {"id": suite.get("databaseId")},
        "app": suite.get("app"),
        "pull_requests": _listed_pulls(pull),
    }


def _suite(suite: Object, pull: Object, commit: Object) -> Object:
    return {
        "id": suite.get("databaseId"),
        "head_sha": commit.get("oid"),
        "head_branch": pull.get("headRefName"),
        "status": _lower(suite.get("status")),
        "conclusion": _lower(suite.get("conclusion")),
        "updated_at": suite.get("updatedAt"),
        "app": suite.get("app"),
        "pull_requests": _listed_pulls(pull),
    }


def _workflows(suites: Iterable[Object]) -> dict[str, WorkflowRun]:
    found: dict[str, WorkflowRun] = {}
    for suite in suites:
        run = payload.inner(suite, "workflowRun")
        run_id, suite_id = payload.ident(run, "databaseId"), payload.ident(suite, "databaseId")
        if run_id is not None and suite_id is not None:
            done = suite.get("status") == "COMPLETED"
            found[suite_id] = WorkflowRun(run_id, suite_id, completed=done)
    return found


def _status(status: Object) -> Object:
    state = status.get("state")
    return {
        "context": status.get("context"),
        "state": "pending" if state in _PENDING else _lower(state),
        "description": status.get("description"),
        "target_url": status.get("targetUrl"),
        "updated_at": status.get("createdAt"),
    }


def _review(review: Object) -> Object:
    return {
        "state": _lower(review.get("state")),
        "body": review.get("body"),
        "html_url": review.get("url"),
        "submitted_at": review.get("submittedAt"),
        "updated_at": review.get("updatedAt"),
        "user": _actor(review),
        "commit_id": payload.inner(review, "commit").get("oid"),
    }


def _comment(comment: Object) -> Object:
    """GraphQL's number holds 32 bits; where that is not enough, the address has the id."""
    url = comment.get("url")
    number = comment.get("databaseId")
    if number is None and isinstance(url, str):
        number = url.rpartition("#issuecomment-")[2]
    return {
        "id": number,
        "body": comment.get("body"),
        "html_url": url,
        "created_at": comment.get("createdAt"),
        "updated_at": comment.get("updatedAt"),
        "user": _actor(comment),
    }


def _actor(node: Object) -> JsonValue:
    """A bot's login, which elsewhere ends in `[bot]`, does not do so here."""
    who = payload.inner(node, "author")
    login, kind = payload.text(who, "login"), payload.text(who, "__typename")
    if login is None:
        return None
    if kind == "Bot" and not login.endswith("[bot]"):
        login = f"{login}[bot]"
    return {"login": login, "type": kind}


def _listed_pulls(pull: Object) -> list[JsonValue]:
    """As webhooks list them: for a fork, none."""
    return [] if pull.get("isCrossRepository") else [{"number": pull.get("number")}]


def _nodes(connection: Object, kind: str | None = None) -> list[Object]:
    found = payload.objects(connection, "nodes")
    return [node for node in found if kind is None or node.get("__typename") == kind]


def _goes_on(connection: Object) -> bool:
    return bool(payload.inner(connection, "pageInfo").get("hasNextPage"))


def _lower(word: JsonValue) -> JsonValue:
    return word.lower() if isinstance(word, str) else None

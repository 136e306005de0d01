"""The GraphQL API: one query over the world, with what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple, TypeAlias

from graphql import (
    DocumentNode,
    ExecutionResult,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLError,
    GraphQLSchema,
    IntValueNode,
    OperationDefinitionNode,
    SelectionSetNode,
    VariableNode,
    build_schema,
    execute_sync,
    parse,
    validate,
)

from towline_sim.github.entities import (
    PASSING,
    CheckRun,
    CheckSuite,
    Comment,
    Pull,
    Repo,
    Review,
    Status,
    User,
    WorldRefusal,
)
from towline_sim.github.limits import Window
from towline_sim.github.problems import Problem
from towline_sim.github.shapes import maybe_when, when
from towline_sim.github.world import World

# ----------------------------------------------------------- graphql_nodes
# The world as GraphQL's nodes: mappings, in which what costs something is a function.

Node: TypeAlias = Mapping[str, Any]
Field: TypeAlias = Callable[..., Any]

_MOST: Final = 100
_OPINIONS: Final = frozenset({"APPROVED", "CHANGES_REQUESTED", "DISMISSED"})


class NotFound(GraphQLError):
    """What GitHub says of a name that leads nowhere."""


def connection(items: Callable[..., Sequence[Any]], node: Callable[[Any], Node]) -> Field:
    """A field that is read page by page; the arguments it does not know itself choose the items."""

    def resolve(
        _info: object,
        first: int | None = None,
        last: int | None = None,
        after: str | None = None,
        before: str | None = None,
        **chosen: Any,
    ) -> Node:
        if (first is None) == (last is None):
            raise GraphQLError("You must provide a `first` or `last` value, and not both.")
        if not 0 <= (first if first is not None else last or 0) <= _MOST:
            raise GraphQLError(f"`first` and `last` are limited to {_MOST} records.")
        found = items(**chosen)
        start = _place(after, 0)
        end = min(len(found), _place(before, len(found) + 1) - 1)
        if first is not None:
            end = min(end, start + first)
        else:
            start = max(start, end - (last or 0))
        nodes = [node(one) for one in found[start:end]]
        return {"totalCount": len(found), "nodes": nodes, "pageInfo": _page(start, end, len(found))}

    return resolve


def _place(cursor: str | None, default: int) -> int:
    return int(cursor) if cursor is not None and cursor.isdecimal() else default


def _page(start: int, end: int, total: int) -> Node:
    empty = end <= start
    return {
        "hasNextPage": end < total,
        "hasPreviousPage": start > 0,
        "startCursor": None if empty else str(start + 1),
        "endCursor": None if empty else str(end),
    }


class Nodes:
    def __init__(self, world: World, root: str) -> None:
        self.world = world
        self.root = root

    def actor(self, user: User | None) -> Node | None:
        if user is None:
            return None
        name = user.login.removesuffix("[bot]") if user.kind == "Bot" else user.login
        return {
            "__typename": user.kind,
            **_ids("U", user.id),
            "login": name,
            "url": f"{self.root}/{name}",
            "avatarUrl": f"{self.root}/avatars/u/{user.id}",
        }

    def repo(self, repo: Repo) -> Node:
        name = repo.full_name
        return {
            **_ids("R", repo.id),
            "name": repo.name,
            "nameWithOwner": name,
            "url": f"{self.root}/{name}",
            "isPrivate": repo.private,
            "defaultBranchRef": lambda _: self._ref(repo, repo.default_branch),
            "pullRequest": lambda _, number: self._find(name, number),
            "pullRequests": connection(lambda **chosen: self._pulls(name, **chosen), self.pull),
        }

    def _ref(self, repo: Repo, branch: str) -> Node | None:
        sha = self.world.refs(repo.full_name).get(f"refs/heads/{branch}")
        target = self.commit(repo.full_name, sha) if sha else None
        return {"name": branch, "prefix": "refs/heads/", "target": target} if sha else None

    def _find(self, repo: str, number: int) -> Node:
        try:
            return self.pull(self.world.pull(repo, number))
        except WorldRefusal:
            raise NotFound(
                f"Could not resolve to a PullRequest with the number of {number}."
            ) from None

    def _pulls(
        self,
        repo: str,
        states: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        headRefName: str | None = None,  # noqa: N803  GraphQL passes it by its own name
        baseRefName: str | None = None,  # noqa: N803  as above
        orderBy: Mapping[str, str] | None = None,  # noqa: N803  as above
    ) -> list[Pull]:
        order = orderBy or {"field": "CREATED_AT", "direction": "ASC"}
        chosen = [
            pull
            for pull in self.world.pulls(repo, state="all")
            if (not states or _state(pull) in states)
            and (headRefName is None or pull.head_ref == headRefName)
            and (baseRefName is None or pull.base_ref == baseRefName)
            and (not labels or {label.name for label in pull.labels} & set(labels))
        ]
        by_update = order["field"] == "UPDATED_AT"
        return sorted(
            chosen,
            key=lambda pull: (pull.updated_at if by_update else pull.created_at, pull.number),
            reverse=order["direction"] == "DESC",
        )

    def pull(self, pull: Pull) -> Node:
        return {
            **_ids("PR", pull.id),
            "number": pull.number,
            "title": pull.title,
            "body": pull.body or "",
            "state": _state(pull),
            "isDraft": pull.draft,
            "closed": pull.state == "closed",
            "merged": pull.merged,
            "url": f"{self.root}/{pull.repo}/pull/{pull.number}",
            "headRefName": pull.head_ref,
            "headRefOid": pull.head_sha,
            "baseRefName": pull.base_ref,
            "baseRefOid": pull.base_sha,
            "headRepository": lambda _: self.repo(self.world.repo(pull.head_repo)),
            "isCrossRepository": pull.from_fork,
            "author": self.actor(pull.author),
            "mergedBy": self.actor(pull.merged_by),
            "createdAt": when(pull.created_at),
            "updatedAt": when(pull.updated_at),
            "closedAt": maybe_when(pull.closed_at),
            "mergedAt": maybe_when(pull.merged_at),
            "additions": pull.additions,
            "deletions": pull.deletions,
            "changedFiles": pull.changed_files,
            **self._merging(pull),
            **self._talk(pull),
        }

    def _merging(self, pull: Pull) -> Node:
        words = {True: "MERGEABLE", False: "CONFLICTING", None: "UNKNOWN"}
        merge_sha = pull.merge_commit_sha if pull.merged else None
        commits = connection(
            lambda: self.world.pull_commits(pull.repo, pull.number),
            lambda one: {"id": f"PRC_{one.sha}", "commit": self.commit(pull.repo, one.sha)},
        )
        return {
            "mergeable": lambda _: words[self.world.mergeability(pull).mergeable],
            "mergeStateStatus": lambda _: self.world.mergeability(pull).state.upper(),
            "mergeCommit": lambda _: self.commit(pull.repo, merge_sha) if merge_sha else None,
            "commits": commits,
        }

    def _talk(self, pull: Pull) -> Node:
        def reviews(states: Sequence[str] | None = None, author: str | None = None) -> list[Review]:
            return [
                one
                for one in self.world.reviews(pull.repo, pull.number)
                if (not states or one.state in states)
                and (author is None or one.author.login == author)
            ]

        def latest(**_: object) -> list[Review]:
            return newest_of_each(self.world.reviews(pull.repo, pull.number))

        def opinions(**_: object) -> list[Review]:
            said = self.world.reviews(pull.repo, pull.number)
            return newest_of_each(one for one in said if one.state in _OPINIONS)

        return {
            "labels": connection(lambda: pull.labels, _label),
            "comments": connection(
                lambda: self.world.comments(pull.repo, pull.number), self.comment
            ),
            "reviews": connection(reviews, self.review),
            "latestReviews": connection(latest, self.review),
            "latestOpinionatedReviews": connection(opinions, self.review),
            "reviewDecision": lambda _: self._decision(pull, opinions()),
        }

    def _decision(self, pull: Pull, opinions: Sequence[Review]) -> str | None:
        states = [one.state for one in opinions]
        if "CHANGES_REQUESTED" in states:
            return "CHANGES_REQUESTED"
        protection = self.world.protection(pull.repo, pull.base_ref)
        if protection is None or not protection.required_approvals:
            return None
        enough = states.count("APPROVED") >= protection.required_approvals
        return "APPROVED" if enough else "REVIEW_REQUIRED"

    def comment(self, comment: Comment) -> Node:
        page = f"{self.root}/{comment.repo}/pull/{comment.number}"
        return {
            **_ids("IC", comment.id),
            "author": self.actor(comment.author),
            "body": comment.body,
            "url": f"{page}#issuecomment-{comment.id}",
            "createdAt": when(comment.created_at),
            "updatedAt": when(comment.updated_at),
        }

    def review(self, review: Review) -> Node:
        page = f"{self.root}/{review.repo}/pull/{review.number}"
        return {
            **_ids("PRR", review.id),
            "author": self.actor(review.author),
            "body": review.body,
            "state": review.state,
            "url": f"{page}#pullrequestreview-{review.id}",
            "commit": lambda _: self.commit(review.repo, review.commit_id),
            "submittedAt": when(review.submitted_at),
            "updatedAt": when(review.updated_at),
        }

    def commit(self, repo: str, sha: str) -> Node:
        facts = self.world.commit(repo, sha)
        return {
            "id": f"C_{sha}",
            "oid": sha,
            "message": facts.message,
            "messageHeadline": facts.message.partition("\n")[0],
            "committedDate": when(facts.at),
            "authoredDate": when(facts.at),
            "statusCheckRollup": lambda _: self._rollup(repo, sha),
            "checkSuites": connection(lambda: self.world.suites(repo, sha), self.suite),
        }

    def _rollup(self, repo: str, sha: str) -> Node | None:
        runs = self.world.runs(repo, sha)
        statuses = self.world.combined(repo, sha).statuses
        both: list[CheckRun | Status] = [*runs, *statuses]
        if not both:
            return None
        return {
            "id": f"SCR_{sha}",
            "state": rollup_state(runs, statuses),
            "contexts": connection(lambda: both, self._context),
        }

    def _context(self, one: CheckRun | Status) -> Node:
        return self.run(one) if isinstance(one, CheckRun) else self.status(one)

    def run(self, run: CheckRun) -> Node:
        page = f"{self.root}/{run.repo}/runs/{run.id}"
        return {
            "__typename": "CheckRun",
            **_ids("CR", run.id),
            "name": run.name,
            "status": run.status.upper(),
            "conclusion": run.conclusion.upper() if run.conclusion else None,
            "startedAt": when(run.started_at),
            "completedAt": maybe_when(run.completed_at),
            "detailsUrl": run.details_url or page,
            "url": page,
            "title": run.title,
            "summary": run.summary,
            "text": run.text,
            "externalId": run.external_id,
            "checkSuite": lambda _: self.suite(self.world.suite(run.repo, run.suite_id)),
        }

    def status(self, status: Status) -> Node:
        return {
            "__typename": "StatusContext",
            "id": f"SC_{status.id}",
            "context": status.context,
            "state": status.state.upper(),
            "description": status.description,
            "targetUrl": status.target_url,
            "creator": self.actor(status.creator),
            "createdAt": when(status.created_at),
        }

    def suite(self, suite: CheckSuite) -> Node:
        app = {**_ids("A", suite.app.id), "slug": suite.app.slug, "name": suite.app.name}
        return {
            **_ids("CS", suite.id),
            "status": suite.status.upper(),
            "conclusion": suite.conclusion.upper() if suite.conclusion else None,
            "app": app,
            "workflowRun": lambda _: self._workflow(suite),
            "createdAt": when(suite.created_at),
            "updatedAt": when(suite.updated_at),
        }

    def _workflow(self, suite: CheckSuite) -> Node | None:
        runs = self.world.workflow_runs(suite.repo, head_sha=suite.head_sha)
        for run in runs:
            if run.suite_id == suite.id:
                page = f"{self.root}/{run.repo}/actions/runs/{run.id}"
                shown = {"runNumber": run.run_number, "event": run.event, "url": page}
                return {**_ids("WFR", run.id), **shown}
        return None


def _ids(prefix: str, number: int) -> Node:
    return {"id": f"{prefix}_{number}", "databaseId": number, "fullDatabaseId": str(number)}


def _label(label: Any) -> Node:
    shown = {"name": label.name, "color": label.color, "description": label.description}
    return {"id": f"LA_{label.id}", **shown}


def _state(pull: Pull) -> str:
    return "MERGED" if pull.merged else pull.state.upper()


def newest_of_each(reviews: Iterable[Review]) -> list[Review]:
    newest: dict[str, Review] = {}
    for one in reviews:
        newest.pop(one.author.login, None)
        newest[one.author.login] = one
    return list(newest.values())


def rollup_state(runs: Sequence[CheckRun], statuses: Sequence[Status]) -> str:
    words = {one.state for one in statuses}
    conclusions = {one.conclusion for one in runs}
    if "error" in words:
        return "ERROR"
    if "failure" in words or any(word and word not in PASSING for word in conclusions):
        return "FAILURE"
    return "PENDING" if "pending" in words or None in conclusions else "SUCCESS"


# ----------------------------------------------------------------- graphql

_MOST_NODES: Final = 500_000
_POINT: Final = 100
_DEEPEST: Final = 40


class Cost(NamedTuple):
    points: int
    nodes: int


class Question(NamedTuple):
    """A query that has been read and found valid, or the errors that keep it from being asked."""

    document: DocumentNode | None
    variables: Mapping[str, Any]
    operation: str | None
    cost: Cost
    errors: tuple[GraphQLError, ...] = ()


@cache
def schema() -> GraphQLSchema:
    text = resources.files("towline_sim.github").joinpath("schema.graphql").read_text("utf-8")
    return build_schema(text)


def read(body: Any) -> Question:
    """Read a request's body; `Problem` if it is no GraphQL request at all."""
    if not isinstance(body, dict) or not isinstance(body.get("query"), str):
        raise Problem(400, "A query attribute must be specified and must be a string.")
    variables = body.get("variables") or {}
    if not isinstance(variables, dict):
        raise Problem(400, "Variables must be an object.")
    operation = body.get("operationName")
    try:
        document = parse(body["query"], max_tokens=50_000)
    except GraphQLError as error:
        return Question(None, variables, operation, Cost(1, 0), (error,))
    errors = tuple(validate(schema(), document))
    if errors:
        return Question(None, variables, operation, Cost(1, 0), errors)
    return Question(document, variables, operation, cost_of(document, variables))


def cost_of(document: DocumentNode, variables: Mapping[str, Any]) -> Cost:
    """A point for each hundred requests that the connections would take if made one by one."""
    fragments = {
        one.name.value: one
        for one in document.definitions
        if isinstance(one, FragmentDefinitionNode)
    }
    counting = _Counting(fragments, variables)
    for one in document.definitions:
        if isinstance(one, OperationDefinitionNode):
            counting.walk(one.selection_set, 1, 0)
    return Cost(max(1, -(-counting.requests // _POINT)), counting.nodes)


class _Counting:
    def __init__(
        self, fragments: Mapping[str, FragmentDefinitionNode], variables: Mapping[str, Any]
    ) -> None:
        self.fragments = fragments
        self.variables = variables
        self.requests = 0
        self.nodes = 0

    def walk(self, selections: SelectionSetNode | None, times: int, depth: int) -> None:
        if selections is None or depth > _DEEPEST:
            return
        for one in selections.selections:
            inner, each = getattr(one, "selection_set", None), times
            if isinstance(one, FragmentSpreadNode):
                inner = self.fragments[one.name.value].selection_set
            elif isinstance(one, FieldNode) and (size := self._size(one)):
                self.requests += times
                each = times * size
                self.nodes += each
            self.walk(inner, each, depth + 1)

    def _size(self, node: FieldNode) -> int:
        for argument in node.arguments or ():
            if argument.name.value in ("first", "last"):
                value = argument.value
                if isinstance(value, IntValueNode):
                    return int(value.value)
                if isinstance(value, VariableNode):
                    given = self.variables.get(value.name.value, 0)
                    return given if isinstance(given, int) else 0
        return 0


class Context(NamedTuple):
    world: World
    root: str
    login: str
    window: Window
    """Of the caller's points, after this query is paid for."""


def ask(question: Question, context: Context) -> dict[str, Any]:
    """The answer's body; errors stand beside what could be answered."""
    if question.document is None:
        return {"errors": [_error(one) for one in question.errors]}
    if question.cost.nodes > _MOST_NODES:
        return {"errors": [{"type": "MAX_NODE_LIMIT_EXCEEDED", "message": "Too many nodes."}]}
    result = execute_sync(
        schema(),
        question.document,
        root_value=_root(context, question.cost),
        variable_values=dict(question.variables),
        operation_name=question.operation,
    )
    return _shown(result)


def _root(context: Context, cost: Cost) -> Node:
    nodes = Nodes(context.world, context.root)
    limit = {
        **context.window.shown(),
        "cost": cost.points,
        "nodeCount": cost.nodes,
        "resetAt": when(context.window.reset),
    }
    return {
        "viewer": lambda _: nodes.actor(context.world.user(context.login)),
        "rateLimit": limit,
        "repository": lambda _, owner, name: _repository(nodes, f"{owner}/{name}"),
    }


def _repository(nodes: Nodes, full_name: str) -> Node:
    try:
        return nodes.repo(nodes.world.repo(full_name))
    except WorldRefusal:
        raise NotFound(f"Could not resolve to a Repository with the name '{full_name}'.") from None


def _shown(result: ExecutionResult) -> dict[str, Any]:
    body: dict[str, Any] = {"data": result.data}
    if result.errors:
        body["errors"] = [_error(one) for one in result.errors]
    return body


def _error(error: GraphQLError) -> dict[str, Any]:
    shown: dict[str, Any] = {"message": error.message}
    if isinstance(error, NotFound) or isinstance(error.original_error, NotFound):
        shown["type"] = "NOT_FOUND"
    if error.path:
        shown["path"] = error.path
    if error.locations:
        shown["locations"] = [{"line": at.line, "column": at.column} for at in error.locations]
    return shown

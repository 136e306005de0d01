"""The GraphQL API: one query over the world, with what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

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

from towline.sim.entities import WorldRefusal
from towline.sim.graphql_nodes import Node, Nodes, NotFound
from towline.sim.graphql_schema import SCHEMA
from towline.sim.http_limits import Window
from towline.sim.rest_problem import Problem
from towline.sim.rest_shapes_base import when
from towline.sim.world import World

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
    return build_schema(SCHEMA)


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

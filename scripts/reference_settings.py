"""The tables of the settings page: names, variables, types, defaults and meanings.

The meaning of a setting is the docstring under it in the model, read from the source: pydantic
could collect them, at the price of parsing the modules at each start.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from scripts.reference_tables import table
from towline.config import Settings
from towline.config.complaints import PREFIX
from towline.config.tow import RepoSettings, SignalSettings, TriggerSettings

_PLAIN: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
}
_VALIDATED: Final = {
    "_http_url": "http or https address",
    "_regex": "regular expression",
    "repo_name": "`OWNER/NAME`",
    "_apprise_url": "apprise address",
    "_command_word": "2 to 41 small letters and hyphens",
    "_jql": "JQL without `ORDER BY`",
}
_TOLD_ELSEWHERE: Final = (SignalSettings, TriggerSettings)
"""They stand in many places, and have a section of their own."""
_HEADS: Final = ("setting", "variable", "type", "default", "meaning")


class Setting(NamedTuple):
    path: str
    variable: str
    kind: str
    default: str
    meaning: str


def settings_tables() -> str:
    """One table for what stands at the top of the file, and one for each table in it."""
    parts = [table(_HEADS, _rows(every_setting(Settings, "", deep=False)))]
    for name, field in Settings.model_fields.items():
        inner = model_in(field.annotation)
        if inner is None:
            continue
        many = get_origin(field.annotation) is dict
        title = f"[{name}.NAME]" if many else f"[{name}]"
        rows = _rows(every_setting(inner, f"{name}.NAME." if many else f"{name}."))
        parts.append(f"### `{title}`\n\n{_first_line(inner)}\n\n{table(_HEADS, rows)}")
    return "\n".join(parts)


def _rows(found: Iterator[Setting]) -> list[tuple[str, ...]]:
    return [
        (f"`{one.path}`", f"`{one.variable}`" if one.variable else "", *one[2:]) for one in found
    ]


def every_setting(
    model: type[BaseModel], path: str = "", *, deep: bool = True, within_list: bool = False
) -> Iterator[Setting]:
    """Each setting of a model, and of the tables in it; those of a list's tables end in `[]`."""
    meanings = meanings_of(model)
    for name, field in model.model_fields.items():
        named = f"{path}{name}"
        inner = model_in(field.annotation)
        one_of_many = get_origin(field.annotation) is dict
        if inner is None or _is_optional(field) or _is_list(field):
            listed = within_list or "[]" in path or path.startswith("repo.")
            yield Setting(
                named,
                "" if listed else variable_of(named),
                kind_of(field),
                _default_of(field),
                meanings.get(name, ""),
            )
        if (
            inner is not None
            and deep
            and model is not RepoSettings
            and inner not in _TOLD_ELSEWHERE
        ):
            inside = ".NAME." if one_of_many else "[]." if _is_list(field) else "."
            yield from every_setting(inner, f"{named}{inside}", within_list=_is_list(field))


def variable_of(path: str) -> str:
    """The name in the environment; what the user chooses stays as NAME."""
    return PREFIX + path.replace(".", "__").upper()


def meanings_of(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings under the fields of a class and of those that it comes from."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if cls is not BaseModel and issubclass(cls, BaseModel):
            found |= _docstrings(cls)
    return found


def _docstrings(cls: type) -> dict[str, str]:
    node = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=said)):
                found[name] = " ".join(str(said).split())
    return found


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The table that a setting is, or is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((one for arg in get_args(annotation) if (one := model_in(arg))), None)


def _is_optional(field: FieldInfo) -> bool:
    return get_origin(field.annotation) in (Union, types.UnionType)


def _is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is tuple


def kind_of(field: FieldInfo) -> str:
    return _kind(field.annotation, tuple(field.metadata))


def _kind(annotation: Any, metadata: tuple[Any, ...]) -> str:
    """In words, with the range that is allowed."""
    if hasattr(annotation, "__metadata__"):
        return _kind(annotation.__origin__, (*metadata, *_flat(annotation.__metadata__)))
    for known in metadata:
        if isinstance(known, AfterValidator | BeforeValidator):
            name = getattr(known.func, "__name__", "")
            if name in _VALIDATED:
                return _VALIDATED[name]
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        some = [arg for arg in get_args(annotation) if arg is not type(None)]
        return _kind(some[0], metadata)
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(annotation))
    if origin is tuple:
        return f"list of: {_kind(get_args(annotation)[0], ())}"
    if model_in(annotation) is not None:
        return "table"
    return " ".join([_PLAIN[annotation], *_range(metadata)])


def _flat(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for one in metadata:
        yield from one.metadata if isinstance(one, FieldInfo) else (one,)


def _range(metadata: tuple[Any, ...]) -> Iterator[str]:
    for one in metadata:
        match one:
            case annotated_types.Gt(gt=limit):
                yield f"above {limit:g}"
            case annotated_types.Ge(ge=limit):
                yield f"from {limit:g}"
            case annotated_types.Le(le=limit):
                yield f"up to {limit}"
            case annotated_types.MinLen(min_length=1):
                yield "that is not empty"
            case annotated_types.MinLen(min_length=least):
                yield f"of at least {least} characters"


def _default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "none" if value is None else f"`{_as_toml(value)}`"


def _as_toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}" if value < 1e6 else f"{value:.0f}"
        case tuple():
            return f"[{', '.join(_as_toml(one) for one in value)}]"
        case BaseModel():
            given = value.model_dump(exclude_unset=True)
            return "{ " + ", ".join(f"{k} = {_as_toml(v)}" for k, v in given.items()) + " }"
        case str() | Path():
            return f'"{value}"'
    return str(value)


def _first_line(model: type[BaseModel]) -> str:
    return re.sub(r"\s+", " ", inspect.getdoc(model) or "").strip()

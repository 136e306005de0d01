"""What is wrong with a setting, in one line that names it and says what is allowed."""

from __future__ import annotations

import difflib
import json
import re
import types
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

PREFIX = "TOWLINE_"
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST: Final = 150
_KINDS: Final = {
    "model_type": "it is a table",
    "dict_type": "it is a table",
    "path_type": "it is a path, as text",
}


def first_complaint(error: ValidationError, root: type[BaseModel]) -> str:
    """Never with the value, which may be a secret."""
    complaint = error.errors(include_url=False, include_input=False)[0]
    path = tuple(complaint["loc"])
    what = complaint["msg"].removeprefix("Value error, ")
    if not what[1:2].isupper():
        what = what[:1].lower() + what[1:]
    if complaint["type"] == "extra_forbidden":
        return f"unknown setting {shown(path)}{_suggestion(root, path)}"
    if complaint["type"] == "tuple_type":
        what = f"it is a list of {'texts' if table_at(root, (*path, 0)) is None else 'tables'}"
    what = _KINDS.get(complaint["type"], what)
    return f"setting {shown(path)}: {what}" if path else what


def shown(path: tuple[str | int, ...]) -> str:
    """As in the file, and as in the environment as far as that can name it."""
    text, variable = "", []
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part if _BARE_KEY.fullmatch(part) else json.dumps(part)}"
    text = text.removeprefix(".")
    if len(text) > _LONGEST:
        return f"{text[:_LONGEST]}…"
    for part in path:
        if not isinstance(part, str) or not part.isidentifier():
            break
        variable.append(part)
    return f"{text} ({PREFIX}{'__'.join(variable).upper()})"


def table_at(root: type[BaseModel], path: tuple[str | int, ...]) -> Any:
    """The table, or the table of tables, that stands at this path; None if none does."""
    found: Any = root
    for part in path:
        if get_origin(found) is dict:
            found = _plain(get_args(found)[1])
        elif get_origin(found) is tuple:
            found = _plain(get_args(found)[0])
        else:
            field = found.model_fields.get(part) if _is_table(found) else None
            found = _plain(field.annotation) if field is not None else None
    return found if _is_table(found) or get_origin(found) is dict else None


def _plain(annotation: Any) -> Any:
    """Without `Annotated` and `None`."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return _plain(kinds[0])
    return annotation


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _suggestion(root: type[BaseModel], path: tuple[str | int, ...]) -> str:
    table = table_at(root, path[:-1]) or root
    allowed = sorted(table.model_fields)
    close = difflib.get_close_matches(str(path[-1]), allowed, n=1)
    return f"; did you mean {close[0]}?" if close else f"; allowed here: {', '.join(allowed)}"

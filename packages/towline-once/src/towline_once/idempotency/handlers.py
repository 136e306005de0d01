"""How `process` calls a handler: which forms there are, who gets the claim, where it runs.

An async handler runs in the caller's task. A plain one may block, so it runs in a thread: the
loop and the renewal of the claim go on meanwhile. A thread cannot be stopped. When the caller of a
plain handler is cancelled, `Work` therefore outlives it, and the service keeps the claim until
the thread has ended. A plain callable that only makes an awaitable (a lambda around a coroutine
function) is called in the thread as well, and what it returns is awaited in the caller's task.
"""

from __future__ import annotations

import asyncio
import collections.abc
import concurrent.futures
import contextvars
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from towline_once.errors import Rejected
from towline_once.idempotency.types import Claim

Handler = Callable[..., Any]

_ALLOWED = (
    "allowed is a plain or async callable that needs no argument, or one that takes the claim "
    "(a parameter annotated Claim, or a single required positional parameter)"
)
_THREADS = 40
"""As many plain handlers of one handle run at a time; more wait, and keep their claims."""

_TAKES_SOME = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_TAKES_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_UNRESOLVED_CLAIM = re.compile(
    r"(?:\w+\.)*Claim(?:\s*\|\s*None)?|(?:\w+\.)*Optional\[(?:\w+\.)*Claim\]"
)


class Form(NamedTuple):
    """A handler that may be called, and how."""

    handler: Handler
    in_loop: bool
    keyword: str | None = None
    """The parameter that is given the claim by name."""
    before: tuple[Any, ...] | None = None
    """What stands before the claim, where it is given by position."""

    def call(self, claim: Claim) -> Any:
        if self.keyword is not None:
            return self.handler(**{self.keyword: claim})
        if self.before is not None:
            return self.handler(*self.before, claim)
        return self.handler()


def form_of(handler: Handler) -> Form:
    """How the handler is called; `Rejected` if it is none."""
    if isinstance(handler, types.FunctionType):
        code = handler.__code__
        if not (code.co_argcount or code.co_kwonlyargcount or code.co_flags & _TAKES_SOME):
            return Form(handler, _wants_loop(handler))
    if not callable(handler):
        raise Rejected(_not_callable(handler))
    in_loop = _wants_loop(handler)
    keyword, before = _place_of_claim(handler)
    return Form(handler, in_loop, keyword, before)


def _not_callable(given: object) -> str:
    what = f"handler is no callable but a {type(given).__name__}"
    if inspect.isawaitable(given):
        what += "; pass the function itself, without calling it"
    return f"{what}; {_ALLOWED}"


def _wants_loop(handler: Handler) -> bool:
    function: Any = handler
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = getattr(function, "__call__", function)  # noqa: B004
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Rejected(f"handler is a generator, which would not run; {_ALLOWED}")
    return inspect.iscoroutinefunction(function) or _promises_awaitable(function)


def _promises_awaitable(function: Any) -> bool:
    """By its annotation a plain function only makes an awaitable, and may need the loop for it."""
    if "return" not in getattr(function, "__annotations__", ()):
        return False
    promised = _signature(function).return_annotation
    promised = typing.get_origin(promised) or promised
    return isinstance(promised, type) and issubclass(promised, collections.abc.Awaitable)


def _place_of_claim(handler: Handler) -> tuple[str | None, tuple[Any, ...] | None]:
    try:
        signature = _signature(handler)
    except (TypeError, ValueError):  # some builtins have none
        return None, None
    parameters = [p for p in signature.parameters.values() if p.kind not in _TAKES_REST]
    needed = [p for p in parameters if p.default is p.empty]
    chosen = next((p for p in parameters if _is_claim(p.annotation)), None)
    if chosen is None and len(needed) == 1 and needed[0].kind is not needed[0].KEYWORD_ONLY:
        chosen = needed[0]
    if missing := [p.name for p in needed if p is not chosen]:
        raise Rejected(f"handler needs values for {', '.join(missing)}; {_ALLOWED}")
    if chosen is None:
        return None, None
    if chosen.kind is chosen.POSITIONAL_ONLY:
        return None, tuple(p.default for p in parameters[: parameters.index(chosen)])
    return chosen.name, None


def _signature(handler: Handler) -> inspect.Signature:
    """A wrapper that passes on whatever it gets has the parameters of what it wraps."""
    try:
        own = inspect.signature(handler, follow_wrapped=False, eval_str=True)
    except Exception:  # as with a name that is imported for type checkers only
        own = inspect.signature(handler, follow_wrapped=False)
    passes_on = any(p.kind in _TAKES_REST for p in own.parameters.values())
    wrapped = getattr(handler, "__wrapped__", None)
    return _signature(wrapped) if passes_on and wrapped is not None else own


def _is_claim(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return _UNRESOLVED_CLAIM.fullmatch(annotation) is not None
    return annotation is Claim or Claim in typing.get_args(annotation)


class HandlerThreads:
    """The threads in which plain handlers run; not the loop's own, which resolves addresses."""

    def __init__(self) -> None:
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, "towline-handler")
        return self._pool.submit(work)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


class Work:
    """One run of a handler."""

    def __init__(self, form: Form, claim: Claim, threads: HandlerThreads) -> None:
        self._form = form
        self._claim = claim
        self._threads = threads
        self._thread: concurrent.futures.Future[tuple[Any, BaseException | None]] | None = None

    async def result(self) -> Any:
        """What the handler returns, or raises."""
        if self._form.in_loop:
            returned = self._form.call(self._claim)
        else:
            context = contextvars.copy_context()
            self._thread = self._threads.submit(lambda: context.run(self._in_thread))
            returned = await self.thread_ended()
        return await returned if inspect.isawaitable(returned) else returned

    def _in_thread(self) -> tuple[Any, BaseException | None]:
        try:
            return self._form.call(self._claim), None
        except BaseException as error:  # futures refuse some of them
            return None, error

    async def thread_ended(self) -> Any:
        """Wait for the thread, which goes on if the one that waits is cancelled."""
        if self._thread is None:
            raise RuntimeError("this handler has no thread")
        returned, error = await asyncio.shield(asyncio.wrap_future(self._thread))
        self._thread = None
        if error is not None:
            if isinstance(error, RuntimeError) and "event loop" in str(error):
                error.add_note(
                    "A plain handler runs in a thread, without an event loop: make it "
                    "`async def`, or annotate that it returns an Awaitable."
                )
            raise error
        return returned

    def goes_on(self) -> bool:
        """Whether a thread is at work, or has ended unheard; one not yet begun is called off."""
        return self._thread is not None and not self._thread.cancel()

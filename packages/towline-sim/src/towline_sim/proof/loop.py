"""An event loop with a virtual clock, for many simulated processes in one thread.

Callbacks of one node run in their order; which node goes on next is decided by dice. Time passes
only when no task has anything to do. A node that crashed is never heard of again: its callbacks are
dropped, and no `finally` of its runs. One that is paused finds everything that fell due meanwhile
waiting for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import random
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from towline_once.errors import TowlineError

T = TypeVar("T")
_SOME_TASKS = 256
_MOST_STEPS = 1_000_000


class Stuck(RuntimeError):
    """No task has anything to do, now or later, and the play is not over."""


class Node:
    """A simulated process, from its start to its end. The world outside is one that never ends."""

    def __init__(self, name: str, life: int = 1) -> None:
        self.name = name
        self.life = life
        self.alive = True
        self.paused_until = 0.0
        self.pauses = 0
        """How often it slept: what it believed before may not hold any more."""
        self.troubled_at = -1e9
        """When it last had trouble with its store."""
        self.cut_until = 0.0
        """Until when nothing that it sends arrives anywhere."""
        self.skew_us = 0
        """How wrong its own clock is."""

    def __str__(self) -> str:
        return self.name if self.life == 1 else f"{self.name}.{self.life}"


WORLD = Node("world")
current: ContextVar[Node] = ContextVar("node", default=WORLD)


class SimHandle:
    """A callback that waits for its turn; one that was cancelled has none."""

    __slots__ = ("_at", "args", "callback", "context", "node")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, at: float
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self._at = at
        self.context = context
        self.node = context.get(current, WORLD)

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self._at


class _Numbered:
    """Has its place in a set by its number, and not by its address."""

    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimTask(_Numbered, asyncio.Task[Any]):
    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **given: Any) -> None:
        self.number = number
        super().__init__(coro, **given)


class SimFuture(_Numbered, asyncio.Future[Any]):
    """Gets its number right after it is made: it is not asked for before."""


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, seed: int) -> None:
        self._now = 0.0
        self._dice = random.Random(seed)  # noqa: S311  the same dice again
        self._queues: dict[Node, deque[SimHandle]] = {}
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._serial = 0
        self._failure: BaseException | None = None
        self._tasks: list[SimTask] = []
        """Also those of the dead: to collect one would run its code."""
        self._most_tasks = _SOME_TASKS
        self.steps = 0

    # ------------------------------------------------------------------ what asyncio asks for

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        handle = SimHandle(
            callback, args, copy_context() if context is None else context, self._now
        )
        queue = self._queues.get(handle.node)
        if queue is not None:
            queue.append(handle)
        else:
            self._line_up(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimHandle:
        when = self._now + delay
        handle = SimHandle(callback, args, copy_context() if context is None else context, when)
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, handle))
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimHandle:
        handle = SimHandle(callback, args, copy_context() if context is None else context, when)
        heapq.heappush(self._timers, (when, self._next(), handle))
        return handle

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[T]:
        task = SimTask(self._next(), coro, loop=self, name=name or "task", context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.append(task)
        if len(self._tasks) > self._most_tasks:
            self._tasks = [one for one in self._tasks if not one.done()]
            self._most_tasks = 2 * len(self._tasks) + _SOME_TASKS
        return task

    def create_future(self) -> asyncio.Future[Any]:
        future = SimFuture(loop=self)
        self._serial = future.number = self._serial + 1
        return future

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> Any:
        """There is no other thread: it is done at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What was not awaited failed, and not by the weather: a fault of the program."""
        error = context.get("exception")
        expected = error is None or isinstance(error, TowlineError)
        if self._failure is None and not expected:
            self._failure = error

    async def shutdown_asyncgens(self) -> None:
        return None

    # ------------------------------------------------------------------ the play

    def play(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until `main` has ended, and nothing longer."""
        before, hooks = events._get_running_loop(), sys.get_asyncgen_hooks()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=None, finalizer=lambda _: None)  # it is never ended
        try:
            task = self.create_task(main)
            self._go_on_until(task.done)
            return task.result()
        finally:
            events._set_running_loop(before)
            sys.set_asyncgen_hooks(*hooks)

    def bury(self) -> None:
        """The play is over: what is left of it ends here, and can do nothing any more."""
        self._queues.clear()
        self._timers.clear()
        unraisable, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for task in self._tasks:
                    if not task.done():
                        _close(task.get_coro())
                self._tasks.clear()
                gc.collect(1)  # what their ends began and is not awaited
        finally:
            sys.unraisablehook = unraisable

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    def crash(self, node: Node) -> None:
        node.alive = False
        self._queues.pop(node, None)

    def pause(self, node: Node, seconds: float) -> None:
        node.pauses += 1
        node.paused_until = max(node.paused_until, self._now + seconds)

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _line_up(self, handle: SimHandle) -> None:
        if handle.node.alive:
            self._queues.setdefault(handle.node, deque()).append(handle)

    def _go_on_until(self, over: Callable[[], bool]) -> None:
        """One callback at a time, of whichever node the dice name; this is where a play is."""
        queues, choice = self._queues, self._dice.choice
        while not over():
            now = self._now
            ready = [queue for node, queue in queues.items() if queue and node.paused_until <= now]
            if not ready:
                self._let_time_pass()
                continue
            handle = (ready[0] if len(ready) == 1 else choice(ready)).popleft()
            self.steps += 1
            if self.steps > _MOST_STEPS:
                raise Stuck(f"no end is in sight at {now:.3f} s")
            callback = handle.callback
            if callback is not None:
                handle.context.run(callback, *handle.args)

    def _let_time_pass(self) -> None:
        """To the next timer, or to the end of a pause."""
        ends = [node.paused_until for node, queue in self._queues.items() if queue]
        timers, pop = self._timers, heapq.heappop
        while timers and (timers[0][2].callback is None or not timers[0][2].node.alive):
            pop(timers)
        if timers:
            ends.append(timers[0][0])
        if not ends:
            raise Stuck(f"nothing is left to do at {self._now:.3f} s")
        now = self._now = max(self._now, min(ends))
        while timers and timers[0][0] <= now:
            handle = pop(timers)[2]
            if handle.callback is not None:
                self._line_up(handle)


def _close(coro: Any) -> None:
    """Its `finally` may want to go on, which is not allowed."""
    with contextlib.suppress(Exception):
        coro.close()


def on_node(node: Node, call: Callable[..., T], *args: Any) -> T:
    """Call it as the node would: whatever it starts belongs to the node."""

    def run() -> T:
        current.set(node)
        return call(*args)

    return copy_context().run(run)


async def never() -> None:
    """Where a crashed node stays."""
    await asyncio.get_running_loop().create_future()

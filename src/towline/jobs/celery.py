"""The Celery engine, its near end: job ids go to a queue in Redis, and nothing else does.

SQL decides what runs; a message only says "look at this job now". So Redis may lose, repeat or
reorder messages, and a message may be given up at any time: the sweeper tells again of every job
that is due and that no worker has begun. From that follow three liberties:

- Nothing waits for Redis. Ids wait in memory, each once, for one thread that publishes them, many
  in a pipeline. While Redis is away they stay there; what does not fit is left to the sweeper.
- Messages are consumed without acknowledgement. Celery's own (a list of what is in hand, given
  again after a timeout) costs two round trips a message and would hand out jobs that SQL knows.
- The queue has a limit. Jobs beyond it are sent as it shrinks, so that a backlog which takes
  longer than the sweeper's patience does not fill Redis with the same ids over and over.

A job that is not due yet is never published with an ETA, which Celery on Redis would deliver
again and again: the sweeper publishes it when it is due.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote

from prometheus_client import Counter

from towline_once.errors import MissingExtra

MISSING = "engine = celery needs Celery: pip install 'towline[celery]'"

try:
    import redis  # noqa: F401  # kombu finds out only when it connects
    from celery import Celery
    from celery.app.amqp import AMQP
    from kombu.connection import Connection
    from kombu.entity import Queue

    from towline_once.db.redis.address import parse_url
except ImportError as missing:
    raise MissingExtra(MISSING) from missing

QUEUE = "towline.jobs"
TASK = "towline.run"
TIMEOUT_SECONDS = 2.0

_MOST_BUFFERED = 50_000
_MOST_IN_QUEUE = 50_000
_MOST_AT_ONCE = 500
_PAUSES = (0.1, 0.2, 0.5, 1.0)
_MEASURE_SECONDS = 1.0
_log = logging.getLogger("towline.celery")

PUBLISHED = Counter("towline_broker_messages", "Job ids that were handed to the broker")
DROPPED = Counter("towline_broker_messages_dropped", "Job ids that were left to the sweeper")


class _PromptConnection(Connection):
    """Looks for a Redis that went away every other second at least; kombu waits up to thirty."""

    def ensure_connection(self, *args: Any, **given: Any) -> Any:
        pace = {"interval_start": 0.2, "interval_step": 0.4, "interval_max": 2.0}
        return super().ensure_connection(*args, **pace | given)  # type: ignore[no-untyped-call]


class _PromptAmqp(AMQP):  # type: ignore[misc]
    Connection = _PromptConnection


def celery_app(redis_url: str, timeout: float = TIMEOUT_SECONDS) -> Any:
    """A Celery application with one queue, no results, and a deadline on every socket."""
    app = Celery("towline", amqp=_PromptAmqp, set_as_current=False)
    queue = Queue(QUEUE, routing_key=QUEUE, no_ack=True)  # type: ignore[no-untyped-call]
    app.conf.update(
        broker_url=_broker_url(redis_url),
        broker_use_ssl=_tls(redis_url),
        broker_transport_options=_transport_options(timeout),
        broker_connection_timeout=timeout,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_queues=[queue],
        task_default_queue=QUEUE,
        task_ignore_result=True,
        accept_content=["json"],
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_prefetch_count_reduction=False,
        worker_cancel_long_running_tasks_on_connection_loss=True,
    )
    return app


def _broker_url(redis_url: str) -> str:
    """Without the options that are ours alone."""
    address = parse_url(redis_url)
    user = ""
    if address.password is not None:
        user = f"{quote(address.user or 'default', safe='')}:{quote(address.password, safe='')}@"
    if "path" in address.options:
        return f"redis+socket://{user}{address.options['path']}?virtual_host={address.database}"
    host, port = address.options["host"], address.options["port"]
    host = f"[{host}]" if ":" in host else host
    scheme = "rediss" if address.tls else "redis"
    return f"{scheme}://{user}{host}:{port}/{address.database}"


def _tls(redis_url: str) -> dict[str, Any] | None:
    address = parse_url(redis_url)
    if not address.tls:
        return None
    options = {name: value for name, value in address.options.items() if name.startswith("ssl_")}
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED} | options


def _transport_options(timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "socket_keepalive": True,
        "health_check_interval": 5,
        "retry_on_timeout": False,
        "max_retries": 0,
        "priority_steps": [0],
    }


class CeleryBell:
    """Publishes job ids from a thread of its own; `ring` neither waits nor fails."""

    def __init__(
        self,
        redis_url: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        most_buffered: int = _MOST_BUFFERED,
        most_in_queue: int = _MOST_IN_QUEUE,
    ) -> None:
        self._wire = _Wire(redis_url, timeout, most_in_queue)
        self._most_buffered = most_buffered
        self._ids: dict[str, None] = {}
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def ring(self, job_ids: Sequence[str] = ()) -> None:
        with self._changed:
            kept = job_ids[: max(0, self._most_buffered - len(self._ids))]
            self._ids.update(dict.fromkeys(kept))
            self._changed.notify()
            if self._thread is None and kept and not self._closing.is_set():
                self._thread = threading.Thread(
                    target=self._publish_always, name="towline-bell", daemon=True
                )
                self._thread.start()
        if len(kept) < len(job_ids):
            DROPPED.inc(len(job_ids) - len(kept))

    @property
    def room(self) -> int:
        """How many more ids are of use now: none while Redis is away or has its fill."""
        return max(0, min(self._most_buffered - len(self._ids), self._wire.room))

    def check(self) -> None:
        """Raise where the broker is away; it blocks, so call it in a thread."""
        self._wire.check()

    def close(self, seconds: float = TIMEOUT_SECONDS) -> None:
        """Publish what is waiting, for so many seconds; it blocks, so call it in a thread."""
        self._closing.set()
        with self._changed:
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    # ------------------------------------------------------------------ the thread

    def _publish_always(self) -> None:
        while batch := self._next_batch():
            if not self._publish(batch):
                break
        self._wire.close()

    def _next_batch(self) -> list[str]:
        """The oldest ids, which stay in the buffer; none when all is said and it is closing."""
        with self._changed:
            while not self._ids and not self._closing.is_set():
                self._changed.wait()
            return list(islice(self._ids, _MOST_AT_ONCE))

    def _publish(self, batch: list[str]) -> bool:
        """Try until it succeeds; False if it is closing and did not."""
        failures = 0
        while (left := self._wire.send(batch)) is None:
            if self._closing.wait(_PAUSES[min(failures, len(_PAUSES) - 1)]):
                return False
            failures += 1
        with self._changed:
            for job_id in batch:
                self._ids.pop(job_id, None)
        PUBLISHED.inc(len(batch) - left)
        if left:
            DROPPED.inc(left)
        return True


class _Wire:
    """One connection to the queue, made when it is needed and thrown away when it fails."""

    def __init__(self, redis_url: str, timeout: float, most_in_queue: int) -> None:
        self._app = celery_app(redis_url, timeout)
        self._most = most_in_queue
        self._connection: Any = None
        self._producer: Any = None
        self._measured = 0.0
        self._down = False
        self.room = most_in_queue

    def send(self, job_ids: list[str]) -> int | None:
        """How many found no room in the queue; None if Redis did not take them."""
        try:
            producer = self._open()
            if self.room < len(job_ids):
                self._measure()
            sent = job_ids[: max(0, self.room)]
            with producer.batch():
                for job_id in sent:
                    _publish_one(producer, job_id)
            self.room -= len(sent)
            if time.monotonic() - self._measured > _MEASURE_SECONDS:
                self._measure()
        except Exception as trouble:
            self._failed(trouble)
            return None
        if self._down:
            self._down = False
            _log.info("broker_back")
        return len(job_ids) - len(sent)

    def check(self) -> None:
        """Reach Redis on another connection: this one belongs to the thread that publishes."""
        with self._app.connection_for_write() as connection:
            connection.default_channel.client.ping()

    def _open(self) -> Any:
        if self._producer is None:
            self._connection = self._app.connection_for_write()
            self._producer = self._connection.Producer()
        return self._producer

    def _measure(self) -> None:
        self._measured = time.monotonic()
        self.room = self._most - int(self._connection.default_channel.client.llen(QUEUE))

    def _failed(self, trouble: Exception) -> None:
        if not self._down:
            self._down = True
            _log.warning("broker_unavailable error=%s: jobs are sent later", trouble)
        self.close()
        self.room = 0

    def close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.release()


def _publish_one(producer: Any, job_id: str) -> None:
    """In Celery's own form, to the queue itself: there is no exchange to be looked up."""
    no_more = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    names = {"lang": "py", "task": TASK, "id": job_id, "root_id": job_id}
    producer.publish(
        [[job_id], {}, no_more],
        routing_key=QUEUE,
        serializer="json",
        headers={**names, "parent_id": None, "group": None},
        correlation_id=job_id,
    )

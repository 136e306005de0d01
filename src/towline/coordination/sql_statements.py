"""The SQL of coordination. Each statement is atomic by itself, on both databases."""

from __future__ import annotations

from towline.store.document_statements import CREATE_DOCUMENT as CREATE_DOCUMENT
from towline.store.document_statements import REPLACE_DOCUMENT as REPLACE_DOCUMENT
from towline.store.sql import Statement

_LEASE = "name, holder, address, token, ticket, expires_us"

TAKE = Statement(
    "take",
    {"name": "text", "holder": "text", "address": "text", "ttl_us": "bigint"},
    f"""
    INSERT INTO towline_leases (name, holder, address, token, ticket, expires_us)
    SELECT b.name, b.holder, b.address, {{epoch}}, 0, {{now}} + b.ttl_us FROM b
    WHERE NOT EXISTS (
      SELECT 1 FROM towline_waiters w WHERE w.name = b.name AND w.expires_us > {{now}}
        AND w.ticket > coalesce(
          (SELECT l.ticket FROM towline_leases l WHERE l.name = b.name), 0))
      OR EXISTS (
        SELECT 1 FROM towline_leases o
        WHERE o.name = b.name AND o.holder = b.holder AND o.expires_us > {{now}})
    ON CONFLICT (name) DO UPDATE SET
      holder = excluded.holder,
      address = excluded.address,
      token = CASE WHEN towline_leases.expires_us > {{now}} THEN towline_leases.token
                   ELSE {{newer}} END,
      expires_us = CASE WHEN towline_leases.expires_us > {{now}} THEN towline_leases.expires_us
                        ELSE excluded.expires_us END
    WHERE towline_leases.expires_us <= {{now}} OR towline_leases.holder = excluded.holder
    RETURNING {_LEASE}, {{now}}
    """,
)

ENQUEUE = Statement(
    "enqueue",
    {
        "name": "text", "holder": "text", "address": "text",
        "ttl_us": "bigint", "patience_us": "bigint",
    },
    """
    INSERT INTO towline_waiters (name, ticket, holder, address, ttl_us, expires_us)
    SELECT b.name, {epoch}, b.holder, b.address, b.ttl_us, {now} + b.patience_us FROM b
    WHERE NOT EXISTS (
      SELECT 1 FROM towline_waiters w WHERE w.name = b.name AND w.holder = b.holder)
    RETURNING holder, ticket
    """,
)  # fmt: skip

FIND_TICKET = Statement(
    "find ticket",
    {"name": "text", "holder": "text"},
    """
    SELECT w.ticket FROM b JOIN towline_waiters w ON w.name = b.name AND w.holder = b.holder
    """,
)

# The head of the queue is the lowest ticket above the one that was granted last, so a waiter that
# was granted the lease and never confirmed it cannot be granted it twice.
PASS_ON = Statement(
    "pass on",
    {"name": "text", "token": "bigint", "own": "text", "grace_us": "bigint"},
    """
    UPDATE towline_leases SET
      holder = coalesce(b.holder, ''),
      address = coalesce(b.address, ''),
      token = CASE WHEN b.holder IS NULL THEN towline_leases.token ELSE {epoch} END,
      ticket = coalesce(b.ticket, towline_leases.ticket),
      expires_us = CASE WHEN b.holder IS NULL THEN 0
                        WHEN b.address = b.own OR b.ttl_us < b.grace_us THEN {now} + b.ttl_us
                        ELSE {now} + b.grace_us END
    FROM (
      SELECT b.ord, b.name AS lease, b.token AS ended, b.own, b.grace_us,
             w.holder, w.address, w.ticket, w.ttl_us
      FROM b JOIN towline_leases l ON l.name = b.name
      LEFT JOIN towline_waiters w ON w.name = b.name AND w.ticket = (
        SELECT min(q.ticket) FROM towline_waiters q
        WHERE q.name = b.name AND q.ticket > l.ticket AND q.expires_us > {now})
    ) AS b
    WHERE towline_leases.name = b.lease
      AND (towline_leases.token = b.ended OR towline_leases.expires_us <= {now})
    RETURNING towline_leases.name, towline_leases.holder, towline_leases.address,
      towline_leases.token, towline_leases.ticket, towline_leases.expires_us, {now}
    """,
)

EXTEND = Statement(
    "extend",
    {"name": "text", "token": "bigint", "ttl_us": "bigint"},
    """
    UPDATE towline_leases SET expires_us = {now} + b.ttl_us FROM b
    WHERE towline_leases.name = b.name AND towline_leases.token = b.token
      AND towline_leases.holder <> ''
    RETURNING towline_leases.name, towline_leases.token
    """,
)

WITHDRAW = Statement(
    "withdraw",
    {"name": "text", "ticket": "bigint"},
    """
    DELETE FROM towline_waiters WHERE (name, ticket) IN (SELECT b.name, b.ticket FROM b)
    RETURNING ticket
    """,
)

PEEK = Statement(
    "peek",
    {"name": "text"},
    """
    SELECT l.name, l.holder, l.address, l.token, l.ticket, l.expires_us, {now}
    FROM b JOIN towline_leases l ON l.name = b.name
    """,
    writes=False,
)

SWEEP_LEASES = Statement(
    "sweep leases",
    {"most": "bigint"},
    """
    DELETE FROM towline_leases WHERE name IN (
      SELECT l.name FROM towline_leases l WHERE l.expires_us <= {now} - 86400000000
        AND NOT EXISTS (SELECT 1 FROM towline_waiters w WHERE w.name = l.name)
      LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)

SWEEP_WAITERS = Statement(
    "sweep waiters",
    {"most": "bigint"},
    """
    DELETE FROM towline_waiters WHERE (name, ticket) IN (
      SELECT w.name, w.ticket FROM towline_waiters w WHERE w.expires_us <= {now}
      LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)

# A holder takes the lowest number that no live holder has; the key keeps two from one number.
# The live ones are counted too, for some may hold higher numbers under a limit that was larger.
TAKE_SLOT = Statement(
    "take slot",
    {"name": "text", "most": "bigint", "holder": "text", "ttl_us": "bigint"},
    """
    INSERT INTO towline_slots (name, slot, holder, token, expires_us)
    SELECT b.name, b.slot, b.holder, {epoch}, {now} + b.ttl_us
    FROM (
      SELECT b.*, (
        SELECT min(c.slot) FROM (
          SELECT 0 AS slot
          UNION ALL
          SELECT s.slot + 1 FROM towline_slots s WHERE s.name = b.name AND s.expires_us > {now}
        ) AS c
        WHERE NOT EXISTS (
          SELECT 1 FROM towline_slots t
          WHERE t.name = b.name AND t.slot = c.slot AND t.expires_us > {now})
      ) AS slot FROM b
    ) AS b
    WHERE b.slot < b.most AND b.most > (
      SELECT count(*) FROM towline_slots n WHERE n.name = b.name AND n.expires_us > {now})
    AND NOT EXISTS (
      SELECT 1 FROM towline_slots o
      WHERE o.name = b.name AND o.holder = b.holder AND o.expires_us > {now})
    ON CONFLICT (name, slot) DO UPDATE SET
      holder = excluded.holder, token = {newer}, expires_us = excluded.expires_us
    WHERE towline_slots.expires_us <= {now}
    RETURNING holder, token
    """,
)

LOOK_AT_SLOTS = Statement(
    "look at slots",
    {"name": "text"},
    """
    SELECT s.holder, s.token FROM b JOIN towline_slots s ON s.name = b.name
    WHERE s.expires_us > {now}
    """,
)

EXTEND_SLOT = Statement(
    "extend slot",
    {"name": "text", "holder": "text", "token": "bigint", "ttl_us": "bigint"},
    """
    UPDATE towline_slots SET expires_us = {now} + b.ttl_us FROM b
    WHERE towline_slots.name = b.name AND towline_slots.holder = b.holder
      AND towline_slots.token = b.token
    RETURNING towline_slots.token
    """,
)

RELEASE_SLOT = Statement(
    "release slot",
    {"name": "text", "holder": "text", "token": "bigint"},
    """
    DELETE FROM towline_slots WHERE (name, holder, token) IN (
      SELECT b.name, b.holder, b.token FROM b)
    RETURNING token
    """,
)

FIRST_TIME = Statement(
    "first time",
    {"key": "text", "holder": "text", "ttl_us": "bigint"},
    """
    INSERT INTO towline_seen (key, holder, expires_us)
    SELECT b.key, b.holder, {now} + b.ttl_us FROM b WHERE true
    ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, expires_us = excluded.expires_us
    WHERE towline_seen.expires_us <= {now} OR towline_seen.holder = excluded.holder
    RETURNING key
    """,
)

MARK = Statement(
    "mark",
    {"key": "text", "holder": "text", "ttl_us": "bigint"},
    """
    INSERT INTO towline_seen (key, holder, expires_us)
    SELECT b.key, b.holder, {now} + b.ttl_us FROM b WHERE true
    ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, expires_us = excluded.expires_us
    RETURNING key
    """,
)

IS_SEEN = Statement(
    "is seen",
    {"key": "text"},
    "SELECT s.key FROM b JOIN towline_seen s ON s.key = b.key WHERE s.expires_us > {now}",
    writes=False,
)

SWEEP_SEEN = Statement(
    "sweep seen",
    {"most": "bigint"},
    """
    DELETE FROM towline_seen WHERE key IN (
      SELECT s.key FROM towline_seen s WHERE s.expires_us <= {now}
      ORDER BY s.expires_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)

READ_DOCUMENT = Statement(
    "read document",
    {"name": "text"},
    """
    SELECT b.name, coalesce(d.version, 0), coalesce(d.body, ''), {now}
    FROM b LEFT JOIN towline_documents d ON d.name = b.name
    """,
    writes=False,
)

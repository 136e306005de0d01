"""The SQL of documents: small texts that are replaced only by who has read them as they are."""

from __future__ import annotations

from towline.ports.inbox import Note
from towline.store.sql import Script, Statement

CREATE_DOCUMENT = Statement(
    "create document",
    {"name": "text", "body": "text"},
    """
    INSERT INTO towline_documents (name, version, body) SELECT b.name, 1, b.body FROM b WHERE true
    ON CONFLICT (name) DO NOTHING RETURNING version, {now}
    """,
)

REPLACE_DOCUMENT = Statement(
    "replace document",
    {"name": "text", "version": "bigint", "body": "text"},
    """
    UPDATE towline_documents SET version = towline_documents.version + 1, body = b.body FROM b
    WHERE towline_documents.name = b.name AND towline_documents.version = b.version
    RETURNING towline_documents.version, {now}
    """,
)


def noting(note: Note) -> Script[bool]:
    """Whether the document was still of that version, and now has the new text."""
    if note.version == 0:
        return bool((yield CREATE_DOCUMENT, [(note.name, note.body)]))
    return bool((yield REPLACE_DOCUMENT, [note]))

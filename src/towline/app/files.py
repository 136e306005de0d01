"""The files of an installation: its database, its secret, its audit log, and who may read them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from towline.http.signing import SigningSecret
from towline_once.backends import scheme_of
from towline_once.errors import Rejected

if TYPE_CHECKING:
    from towline.config import Settings


def database_file(settings: Settings) -> Path | None:
    """None for PostgreSQL, and for SQLite in memory."""
    if scheme_of(settings.database_url) != "sqlite":
        return None
    from towline_once.db.sqlite import file_of

    return file_of(settings.database_url)


def own_files(settings: Settings) -> list[Path]:
    """The files that Towline makes, some of which are there: no other user needs them."""
    from towline_once.private_files import files_of_sqlite

    database = database_file(settings)
    found = files_of_sqlite(database) if database is not None else []
    if settings.serve.secret_file is None and (secret := SecretSource(settings).file) is not None:
        found.append(secret)
    if (audit := settings.audit.file) is not None:
        numbered = range(1, settings.audit.keep_files + 1)
        names = ["", ".lock", *(f".{number}" for number in numbered)]
        found += [audit.with_name(f"{audit.name}{ending}") for ending in names]
    return list(dict.fromkeys(found))


def given_files(settings: Settings) -> list[Path]:
    """Files with secrets that a person made, who may mean a group to read them."""
    given = (settings.serve.secret_file, settings.github.app_key_file)
    return [file for file in given if file is not None]


class SecretSource:
    """The secret that signs sessions and seals API keys, found when it is first asked for.

    It is a setting, or a file. Without a setting the file stands beside a SQLite database, and in
    the user's state folder for PostgreSQL, so that all processes of one machine share it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: SigningSecret | None = None

    def __call__(self) -> SigningSecret:
        """Made where there is none yet."""
        if self._found is None:
            self._found = self._read(make=True)
        return self._found or self._in_memory()

    def if_there(self) -> SigningSecret | None:
        """Without making anything."""
        return self._found or self._read(make=False)

    @property
    def file(self) -> Path | None:
        """None where a setting has the secret, or where it is kept in memory alone."""
        serve = self._settings.serve
        if serve.secret is not None or serve.secret_file is not None:
            return serve.secret_file
        if scheme_of(self._settings.database_url) == "sqlite":
            database = database_file(self._settings)
            return None if database is None else database.with_name(f"{database.name}.secret")
        from towline.config import state_folder

        folder = state_folder()
        return None if folder is None else folder / "secret"

    def _read(self, *, make: bool) -> SigningSecret | None:
        from towline_once.private_files import read_secret, secret_made_once

        serve, file = self._settings.serve, self.file
        if serve.secret is not None:
            return SigningSecret(serve.secret.strip().encode(), "that of serve.secret")
        if file is None:
            return None
        try:
            own_folder = serve.secret_file is None
            text = secret_made_once(file, folders=own_folder) if make else read_secret(file)
        except Rejected as error:
            raise Rejected(f"{error}; or set serve.secret (TOWLINE_SERVE__SECRET)") from None
        return None if text is None else SigningSecret(text, f"that of {file}")

    def _in_memory(self) -> SigningSecret:
        """It ends with the process, as a database in memory does."""
        if scheme_of(self._settings.database_url) != "sqlite":
            raise Rejected(
                "there is no home folder to keep a secret in: set serve.secret "
                "(TOWLINE_SERVE__SECRET) to at least 32 random characters"
            )
        self._found = SigningSecret(secrets.token_bytes(32), "that of this process")
        return self._found

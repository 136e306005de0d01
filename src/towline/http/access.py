"""What the routes of the control plane work with, and who may use them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from towline.http.auth import Keyring, Principal, peer_of

_BEARER = HTTPBearer(auto_error=False, description="A key from `towline keys create`.")
_API_KEY = APIKeyHeader(name="X-API-Key", auto_error=False, description="The same key.")


class Needs:
    """A dependency: the request has a key with this scope, or with any where it is None."""

    def __init__(self, scope: str | None) -> None:
        self._scope = scope

    async def __call__(
        self,
        request: Request,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
        api_key: Annotated[str | None, Security(_API_KEY)],
    ) -> Principal:
        """The two last arguments are for the OpenAPI; the keyring reads the headers itself."""
        keyring: Keyring = request.app.state.keyring
        return await keyring.check(request.scope["headers"], self._scope, peer_of(request.scope))


Reader = Annotated[Principal, Depends(Needs("read"))]
Commander = Annotated[Principal, Depends(Needs("command"))]
Anybody = Annotated[Principal, Depends(Needs(None))]

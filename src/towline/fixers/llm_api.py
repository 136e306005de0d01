"""Asks a language model over HTTP: one request, one deadline, one host, no redirects.

The key travels in a header, and is never part of a message, a log line or a `repr`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from typing import Any, Final

import httpx2
import orjson

from towline.errors import Definitive, Rejected, Transient
from towline.fixers.config import LlmConfig

_OWN_ADDRESSES: Final = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
}
_MOST_BYTES: Final = 4 * 1024**2
_PASSING: Final = (408, 409, 425, 429)


class ModelApi:
    """Anthropic's API, or one that OpenAI's clients understand."""

    def __init__(self, config: LlmConfig) -> None:
        self._config = config
        self._root = _root_of(config.url or _OWN_ADDRESSES[config.provider])
        if not config.api_key.isascii() or not config.api_key.isprintable():
            raise Rejected("the model's key must be printable ASCII")

    def __repr__(self) -> str:
        return f"ModelApi({self._config.provider}, {self._root.host})"

    async def ask(self, system: str, prompt: str) -> str:
        """What it answers; `Definitive` if it does not answer to the end."""
        path, headers, body = self._request(system, prompt)
        answer = await self._sent(path, headers, body)
        try:
            text, ended = self._read(answer)
        except (KeyError, IndexError, TypeError, ValueError):
            raise Transient("the model's answer is not of the form that was agreed on") from None
        if not ended:
            raise Definitive(f"the model's answer is longer than {self._config.max_tokens} tokens")
        return text

    def _request(self, system: str, prompt: str) -> tuple[str, dict[str, str], dict[str, object]]:
        config = self._config
        said = {"role": "user", "content": prompt}
        body: dict[str, object] = {"model": config.model, "max_tokens": config.max_tokens}
        if config.provider == "anthropic":
            headers = {"x-api-key": config.api_key, "anthropic-version": "2023-06-01"}
            return "/v1/messages", headers, {**body, "system": system, "messages": [said]}
        headers = {"authorization": f"Bearer {config.api_key}"} if config.api_key else {}
        messages = [{"role": "system", "content": system}, said]
        return "/chat/completions", headers, {**body, "messages": messages}

    def _read(self, answer: bytes) -> tuple[str, bool]:
        told: Any = orjson.loads(answer)
        if self._config.provider == "anthropic":
            parts = [part["text"] for part in told["content"] if part["type"] == "text"]
            return "".join(parts), told["stop_reason"] != "max_tokens"
        choice = told["choices"][0]
        return str(choice["message"]["content"]), choice.get("finish_reason") != "length"

    async def _sent(self, path: str, headers: dict[str, str], body: dict[str, object]) -> bytes:
        url = self._root.copy_with(raw_path=self._root.raw_path.rstrip(b"/") + path.encode())
        headers = {**headers, "content-type": "application/json", "user-agent": "towline"}
        try:
            async with (
                asyncio.timeout(self._config.seconds),
                httpx2.AsyncClient(timeout=None, follow_redirects=False) as client,
            ):
                request = client.build_request(
                    "POST", url, headers=headers, content=orjson.dumps(body)
                )
                response = await client.send(request, stream=True)
                try:
                    received = await _whole(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise Transient(f"the model did not answer within {self._config.seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError) as error:
            # the last two: it redirects to what is no URL
            raise Transient(f"the model cannot be reached: {type(error).__name__}") from None
        self._judge(response.status_code, received)
        return received

    def _judge(self, status: int, body: bytes) -> None:
        if status == 200:
            return
        said = f"the model's server answered {status}{self._message(body)}"
        if status >= 500 or status in _PASSING:
            raise Transient(said)
        raise Definitive(said)

    def _message(self, body: bytes) -> str:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = str(orjson.loads(body)["error"]["message"])
            if self._config.api_key:
                text = text.replace(self._config.api_key, "***")
            return ": " + "".join(char if char.isprintable() else " " for char in text[:200])
        return ""


async def _whole(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise Definitive(f"the model's answer is larger than {_MOST_BYTES} bytes")
    return bytes(body)


def _root_of(text: str) -> httpx2.URL:
    try:
        url = httpx2.URL(text)
        host = url.host
    except (httpx2.InvalidURL, ValueError):  # the latter of letters that no host can have
        url, host = httpx2.URL(""), ""
    secure = url.scheme == "https" or (url.scheme == "http" and _is_this_machine(host))
    if not secure or not host or url.userinfo or url.query:
        raise Rejected("the model's URL must be like https://host/path, or http on this machine")
    return url


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

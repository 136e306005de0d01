"""Asks a language model over HTTP: one request, without redirects."""

from __future__ import annotations

import ipaddress
from typing import Any, Final

import httpx2
import orjson

from towline.api_client import ApiClient, Errors, Limits, root_of
from towline.errors import Definitive, Rejected, Transient, Unavailable
from towline.fixers.config import LlmConfig
from towline.store.clock import SystemClock

_OWN_ADDRESSES: Final = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
}
_MAX_BYTES: Final = 4 * 1024**2
_PASSING: Final = (408, 409, 425)
_REFUSALS: Final = (*range(201, 429), *range(430, 500))
_ERRORS: Final = Errors(Unavailable, Definitive, Definitive)


class ModelApi:
    """Anthropic's API, or one that OpenAI's clients understand."""

    def __init__(self, config: LlmConfig) -> None:
        self._config = config
        self._root = _root_of(config.url or _OWN_ADDRESSES[config.provider])
        self._clock = SystemClock()
        self._limits = Limits(self._clock)
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
        """By a client of its own: a fixer may be used in several event loops, one after another."""
        config = self._config
        client = ApiClient(
            "the model",
            str(self._root),
            self._clock,
            headers=headers,
            errors=_ERRORS,
            limits=self._limits,
            deadline_seconds=config.seconds,
            max_body=_MAX_BYTES,
            redirects=False,
            secrets=[config.api_key],
            metric="model",
        )
        try:
            answer = await client.send("POST", path, about="a fix", body=body, also=_REFUSALS)
        finally:
            await client.aclose()
        if answer.status == 200:
            return answer.body
        said = f"the model's server answered {answer.status}: {answer.says}"
        if answer.status in _PASSING:
            raise Transient(said)
        raise Definitive(said)


def _root_of(text: str) -> httpx2.URL:
    url = root_of(text, "model")
    if url.scheme != "https" and not _is_this_machine(url.host):
        raise Rejected("the model's URL must be like https://host/path, or http on this machine")
    return url


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

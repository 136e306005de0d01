"""uvicorn's protocol, but that an offer of another protocol is declined, and refusals are problems.

Clients such as Java's and `curl --http2` offer HTTP/2 with a plain request (`Upgrade: h2c`). Who
does not take the offer answers the request as if it had not been made. httptools ends it at its
head and takes what follows for the other protocol, so that its body would be lost. Here it is read
again without the offer. WebSockets are declined in the same way.
"""

from __future__ import annotations

import contextlib
from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from towline.web.answers import Problem

_OFFER: Final = frozenset({b"upgrade", b"http2-settings"})
_CLOSE: Final = (b"connection", b"close")


class HttpProtocol(HttpToolsProtocol):
    """A connection."""

    def data_received(self, data: bytes | memoryview) -> None:
        self._unset_keepalive_if_required()
        try:
            while True:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as offer:
                    data = memoryview(data)[offer.args[0] :]
                    self._decline()
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("this is not a request that HTTP allows")

    def _should_upgrade(self) -> bool:
        """uvicorn leaves a request with an offer alone, up to its end at the head."""
        return True

    def _decline(self) -> None:
        """Read the head again without the offer, by a parser that waits for the body."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            raise httptools.HttpParserInvalidMethodError("there is nothing to connect to")
        lines = [b"%b %b HTTP/%b\r\n" % (method, self.url, version.encode())]
        lines += [b"%b: %b\r\n" % header for header in self.headers if header[0] not in _OFFER]
        self.parser = httptools.HttpRequestParser(self)
        with contextlib.suppress(AttributeError):  # httptools before 0.6.3, as in uvicorn
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"".join(lines) + b"\r\n")

    def send_400_response(self, msg: str) -> None:
        if self.transport.is_closing():
            return
        start, body = Problem(400, "bad_request", msg).messages()
        headers = (*self.server_state.default_headers, *start["headers"], _CLOSE)
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(STATUS_LINE[400] + b"".join(lines) + b"\r\n" + body["body"])
        self.transport.close()

"""A private nginx, with the servers that a page of the documentation gives it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Sequence

from tests.certificates import self_signed
from tests.servers import PrivateServer

PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class Nginx(PrivateServer):
    label = "nginx"

    def __init__(self, servers: str, replaced: Sequence[tuple[str, str]]) -> None:
        """`servers` is taken as it is written, but for the first of each pair."""
        super().__init__()
        self.certificate = self_signed(self.folder)
        self._servers = servers
        self._replaced = replaced

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    def _command(self) -> list[str]:
        configuration = self.folder / "nginx.conf"
        configuration.write_text("\n".join(self._configuration()))
        assert PROGRAM is not None
        return [PROGRAM, "-p", str(self.folder), "-c", str(configuration), "-e", "stderr"]

    def _configuration(self) -> Iterator[str]:
        text = self._servers
        for shown, here in (
            *self._replaced,
            ("listen 443 ssl", f"listen {self.host}:{self.port} ssl"),
            ("/etc/ssl/hooks.example.pem", str(self.certificate)),
            ("/etc/ssl/hooks.example.key", str(self.certificate)),
        ):
            assert text.count(shown) == 1, f"{shown} is not there, or not once"
            text = text.replace(shown, here)
        yield "daemon off; master_process off; pid nginx.pid; events {} http {"
        yield "access_log off;"
        yield from (f"{name}_temp_path {self.folder / name};" for name in _FOLDERS)
        yield f"{text} }}"

    def _answers(self) -> bool:
        with socket.socket() as line:
            return line.connect_ex((self.host, self.port)) == 0

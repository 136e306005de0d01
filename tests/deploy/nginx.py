"""A private nginx, with the servers that a page of the documentation gives it."""

from __future__ import annotations

import ipaddress
import shutil
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.servers import PrivateServer

PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class Nginx(PrivateServer):
    label = "nginx"

    def __init__(self, servers: str, replaced: Sequence[tuple[str, str]]) -> None:
        """`servers` is taken as it is written, but for the first of each pair."""
        super().__init__()
        self.certificate = self.folder / "hooks.pem"
        self._key = self.folder / "hooks.key"
        self._servers = servers
        self._replaced = replaced

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    def _command(self) -> list[str]:
        _sign_for(self.host, self.certificate, self._key)
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
            ("/etc/ssl/hooks.example.key", str(self._key)),
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


def _sign_for(address: str, certificate: Path, key: Path) -> None:
    """A certificate for an address, by itself, for a day."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hooks.example")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), False
        )
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )

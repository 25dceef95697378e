"""The certificates of both endpoints: reads and checks them, and reads them again when the files change."""

import logging
import os
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from farrank_server.config.schema import TlsConfig
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

# A chain of certificates has a few kilobytes; all certificate authorities of a system have 300.
MAX_PEM_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class CertificateSet:
    """The contents of the files at one time: as bytes for gRPC, as a context for HTTP."""

    private_key: bytes
    certificate: bytes
    client_ca: bytes | None
    context: ssl.SSLContext

    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        """The certificates in gRPC's form."""
        return grpc.ssl_server_certificate_configuration(
            [(self.private_key, self.certificate)], self.client_ca
        )


def read_certificates(tls: TlsConfig) -> CertificateSet:
    """Read certificates, and check that they are valid and fit together.

    Raises: ConfigError naming the key, the file and the problem.
    """
    files = {"certificate": tls.certificate, "private_key": tls.private_key, "client_ca": tls.client_ca}
    contents: dict[str, bytes | None] = {}
    for key, path in files.items():
        try:
            contents[key] = _pem(key, path) if path else None
            if path and key != "private_key":
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
        except ssl.SSLError as error:
            raise ConfigError(f"listen.tls.{key}: {path} holds no PEM certificate") from error
        except OSError as error:
            raise ConfigError(f"listen.tls.{key}: {path} cannot be read: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password OpenSSL would ask for one and wait at the terminal.
        context.load_cert_chain(tls.certificate, tls.private_key, password="")
    except ssl.SSLError as error:
        belongs = error.reason != "KEY_VALUES_MISMATCH"
        why = "holds no unencrypted PEM key" if belongs else f"does not belong to {tls.certificate}"
        raise ConfigError(f"listen.tls.private_key: {tls.private_key} {why}") from error
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(tls.client_ca)
        # TLS 1.2 keeps sessions in a cache that Python cannot turn off. A client whose authority was removed
        # could resume a session without showing its certificate.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Session tickets have the same problem.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return CertificateSet(
        contents["private_key"] or b"", contents["certificate"] or b"", contents["client_ca"], context
    )


def _pem(key: str, path: Path) -> bytes:
    with path.open("rb") as file:
        found = file.read(MAX_PEM_BYTES + 1)
    if len(found) > MAX_PEM_BYTES:
        raise ConfigError(f"listen.tls.{key}: {path} has more than {MAX_PEM_BYTES} bytes")
    return found


class Certificates:
    """Gives every handshake the current contents of the files, or the last valid ones.

    Open connections stay open. Thread-safe. Raises: ConfigError, as `read_certificates`.
    """

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        # gRPC's handshakes call `now` from gRPC's own threads.
        self._lock = threading.Lock()
        self._seen = self._state()
        self._held = read_certificates(tls)

    def for_grpc(self) -> grpc.ServerCredentials:
        """The credentials of a gRPC port."""
        given = self._held

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            now = self.now()
            if now is given:
                return None
            given = now
            return now.for_grpc()

        return grpc.dynamic_ssl_server_credentials(
            given.for_grpc(),
            fetch,  # type: ignore[arg-type]  # None says that nothing changed
            require_client_authentication=self._tls.client_ca is not None,
        )

    def for_http(self) -> ssl.SSLContext:
        """The context of an HTTP server. Each handshake switches to the current context."""

        def choose(handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            handshake.context = self.now().context

        # The callback runs whether or not a client names a server.
        first = read_certificates(self._tls).context
        first.sni_callback = choose
        return first

    def now(self) -> CertificateSet:
        """The current contents of the files.

        If the files cannot be used, that is logged and the last valid contents are returned.
        """
        with self._lock:
            if self._state() != self._seen:
                try:
                    self._read()
                except ConfigError as error:
                    log.error("the certificates were not reloaded: %s", error)
            return self._held

    def reload(self) -> None:
        """Read the files again.

        Raises: ConfigError; the certificates then stay as they are.
        """
        with self._lock:
            self._read()

    def _read(self) -> None:
        # Take the state before reading: a change during the read is then noticed at the next handshake.
        self._seen = self._state()
        self._held = read_certificates(self._tls)
        log.info("reloaded the certificates")

    def _state(self) -> object:
        """A value that differs whenever the files differ."""
        paths = (self._tls.certificate, self._tls.private_key, self._tls.client_ca)
        return [state_of(path) for path in paths if path is not None]


def state_of(path: Path) -> object:
    """A value that differs whenever the file differs. None if the file is inaccessible."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

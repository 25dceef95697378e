"""Certificates for tests of TLS."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of an authority, and of a certificate that it issued for farrank.test."""

    authority: Path
    certificate: Path
    private_key: Path

    def pair(self) -> tuple[bytes, bytes]:
        """Return key and certificate, as gRPC servers take them."""
        return self.private_key.read_bytes(), self.certificate.read_bytes()

"""The destination of a client's calls: one server, or replicas that share them.

The client chooses among given addresses, or those of a DNS name (`balancing`). For other targets gRPC
resolves the addresses and shares calls with its `round_robin` and client-side health checks. The reason that
lists of host names are refused is in docs/decisions/0040-replicas-and-how-calls-find-them.md.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from farrank_client.calls import SERVICE
from farrank_client.lookup import NAME_LOOKUP_S

# By default a gRPC server closes connections that ping more often than every five minutes.
KEEPALIVE_S = 310.0
KEEPALIVE_TIMEOUT_S = 20.0

# Farrank's servers accept pings this often. A silent replica is dropped after the sum of both times.
BALANCED_KEEPALIVE_S = 2.0
BALANCED_KEEPALIVE_TIMEOUT_S = 3.0

# gRPC's default port for a name without one.
DEFAULT_PORT = 443

# Targets that gRPC resolves to several addresses.
_SHARED_SCHEMES = ("dns", "ipv4", "ipv6", "xds")


@dataclass(frozen=True, slots=True)
class Destination:
    """A target in gRPC's form; whether its servers share calls, and whether it names them.

    `names_servers` is False for addresses: then a certificate cannot be checked against the target. Replicas
    that the client itself chooses from are at `addresses`, or at the addresses of `name`, a host and a port.
    """

    target: str
    is_shared: bool
    names_servers: bool = True
    addresses: tuple[str, ...] = ()
    name: tuple[str, int] | None = None

    @property
    def is_chosen_from(self) -> bool:
        """Whether the client itself can choose a server for each call."""
        return bool(self.addresses) or self.name is not None

    def options(self, health_service: str | None) -> Mapping[str, str | int]:
        """The channel options with which gRPC shares calls among the servers; empty for one server.

        `health_service` is the service in health checks; None means RerankService.
        """
        if not self.is_shared:
            return {}
        config = {
            "loadBalancingConfig": [{"round_robin": {}}],
            "healthCheckConfig": {"serviceName": SERVICE if health_service is None else health_service},
        }
        return {
            "grpc.service_config": json.dumps(config),
            "grpc.dns_min_time_between_resolutions_ms": round(NAME_LOOKUP_S * 1000),
        }

    def keepalive_s(self, wanted_s: float | str | None) -> tuple[float, float] | None:
        """The interval of a connection's pings, and the timeout of their answers; None without pings."""
        if wanted_s is None:
            return None
        most_s = BALANCED_KEEPALIVE_TIMEOUT_S if self.is_shared else KEEPALIVE_TIMEOUT_S
        if not isinstance(wanted_s, str):
            return wanted_s, most_s
        return (BALANCED_KEEPALIVE_S if self.is_shared else KEEPALIVE_S), most_s


def destination(target: str | Sequence[str]) -> Destination:
    """Read a client's target.

    `HOST:PORT` is one server. Several addresses, in a sequence or separated by commas, are replicas; so are
    the addresses that a target with a scheme resolves to (`dns:///NAME:PORT`, `ipv4:A:1,B:2`).
    Raises: ValueError for a URL, for no address, and for several that are not IP addresses of one version,
    each with its port.
    """
    given = target.split(",") if isinstance(target, str) and ":///" not in target else target
    if isinstance(given, str):
        given = [given]
    addresses = [each.strip() for each in given]
    if not addresses or not all(addresses):
        raise ValueError(f"target: {target!r} has an empty address; give HOST:PORT, or several with commas")
    for each in addresses:
        _refuse_url(each)
    first = addresses[0]
    scheme, colon, _ = first.partition(":")
    if colon and scheme.lower() in _SHARED_SCHEMES:
        names = scheme.lower() in ("dns", "xds")
        if names and len(addresses) > 1:
            raise ValueError(f"target: {target!r} is several names; give one that resolves to all replicas")
        target = ",".join(addresses)
        if names:
            return Destination(target, is_shared=True, name=_dns_name(target))
        given = tuple(target[len(scheme) + 1 :].split(","))
        return Destination(target, is_shared=True, names_servers=False, addresses=given)
    if len(addresses) == 1:
        return Destination(first, is_shared=False)
    versions = {isinstance(_ip(each), IPv6Address) for each in addresses}
    if len(versions) > 1:
        raise ValueError(f"target: {target!r} mixes IPv4 and IPv6; gRPC takes a list of one of them")
    scheme = "ipv6" if versions == {True} else "ipv4"
    target = f"{scheme}:{','.join(addresses)}"
    return Destination(target, is_shared=True, names_servers=False, addresses=tuple(addresses))


def _dns_name(target: str) -> tuple[str, int] | None:
    """Host and port of a `dns` target; None if it names its own DNS server, because gRPC queries that."""
    scheme, _, rest = target.partition(":")
    if scheme.lower() != "dns" or (rest.startswith("//") and not rest.startswith("///")):
        return None
    place = rest.removeprefix("//").lstrip("/")
    host, colon, port = place.rpartition(":")
    if not colon or (place.startswith("[") and place.endswith("]")):
        return place.strip("[]"), DEFAULT_PORT
    # gRPC refuses a wrong port.
    return (host.strip("[]"), int(port)) if port.isdecimal() else None


def _refuse_url(address: str) -> None:
    scheme, separator, rest = address.partition("://")
    if separator and scheme.lower() in ("http", "https"):
        place = rest.partition("/")[0]
        hint = ", and use tls if that port speaks TLS" if scheme.lower() == "https" else ""
        raise ValueError(f"target: {address!r} is a URL; give HOST:PORT, here {place!r}{hint}")


def _ip(address: str) -> object:
    """Read one address of several. Raises: ValueError if it is not an IP address with a port."""
    host, colon, port = address.rpartition(":")
    try:
        found = ip_address(host.strip("[]"))
    except ValueError:
        raise ValueError(
            f"target: {address!r} of several is not an IP address with a port; for host names give one that "
            "resolves to all replicas, such as dns:///NAME:PORT"
        ) from None
    if not colon or not port.isdecimal() or (isinstance(found, IPv6Address) and host[:1] != "["):
        raise ValueError(f"target: {address!r} of several must be IPV4:PORT or [IPV6]:PORT")
    return found

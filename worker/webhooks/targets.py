"""Decide which addresses a callback may reach: public ones over https, and those the operator allows."""

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpx

IPNetwork = IPv4Network | IPv6Network

MAX_URL_LENGTH = 2048
MAX_HOST_LENGTH = 253
PUBLIC_PORTS = (443, 8443)
DEFAULT_PORTS = {"https": 443, "http": 80}

# Networks that `is_global` accepts although they lead into somebody's private network, or nowhere.
NEVER_GLOBAL = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "224.0.0.0/4",
        "::/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/23",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
        "ff00::/8",
    )
)


class ForbiddenTargetError(Exception):
    """A callback address that must not be connected to. The message says why."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Rules for the addresses that callbacks may reach.

    Args:
        allowed: The operator's own networks, where http is allowed, and any port unless `ports` are given.
        ports: The only allowed ports; None: 443 and 8443, and every port of the allowed networks.

    """

    allowed: tuple[IPNetwork, ...] = ()
    ports: tuple[int, ...] | None = None

    def check_url(self, url: str) -> httpx.URL:
        """Check a URL as far as possible without resolving its host; return the URL as it will be used.

        Raises:
            ForbiddenTargetError: it is malformed, not http(s), has credentials, or is a forbidden target.

        """
        parsed = _parse(url)
        if parsed.scheme not in DEFAULT_PORTS:
            raise ForbiddenTargetError("must be an https:// address")
        if not parsed.host or len(parsed.host) > MAX_HOST_LENGTH:
            raise ForbiddenTargetError("must contain the name of a host")
        if parsed.userinfo or "@" in _authority(url):
            raise ForbiddenTargetError("must not contain credentials")
        if parsed.scheme == "http" and not self.allowed:
            raise ForbiddenTargetError(
                "must be an https:// address; http is allowed only in the operator's own networks"
            )
        port = port_of(parsed)
        if not 0 < port <= 0xFFFF:
            raise ForbiddenTargetError(f"{port} is not a port")
        if port not in (self.ports or PUBLIC_PORTS) and (self.ports is not None or not self.allowed):
            raise ForbiddenTargetError(f"callbacks cannot use port {port}")
        literal = _literal(parsed.host)
        if literal is not None:
            self.check_address(literal, port, is_tls=parsed.scheme == "https")
        return parsed

    def check_address(self, address: str, port: int, *, is_tls: bool) -> None:
        """Check an address that a host name resolved to, before connecting to it.

        Raises:
            ForbiddenTargetError: it is neither public at a public port over TLS, nor allowed.

        """
        ip = ip_address(address.partition("%")[0])
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        if any(ip in network for network in self.allowed):
            if self.ports is None or port in self.ports:
                return
            raise ForbiddenTargetError(f"callbacks cannot use port {port}")
        if not ip.is_global or any(ip in network for network in NEVER_GLOBAL):
            raise ForbiddenTargetError(f"{ip} is not a public address")
        if not is_tls:
            raise ForbiddenTargetError(f"{ip} is a public address, so the URL must start with https://")
        if port not in (self.ports or PUBLIC_PORTS):
            raise ForbiddenTargetError(f"callbacks cannot use port {port}")


def port_of(url: httpx.URL) -> int:
    """Return the port of an http(s) URL."""
    return DEFAULT_PORTS[url.scheme] if url.port is None else url.port


def _parse(url: str) -> httpx.URL:
    """Parse a URL with the parser of the request itself: two parsers may see two different hosts."""
    if len(url) > MAX_URL_LENGTH:
        raise ForbiddenTargetError(f"must be at most {MAX_URL_LENGTH} characters")
    if any(not "!" <= character <= "~" for character in url):
        raise ForbiddenTargetError("must be ASCII without spaces; write the host's name in punycode")
    if "\\" in url:
        raise ForbiddenTargetError("must not contain backslashes")
    try:
        parsed = httpx.URL(url)
        _ = (parsed.host, parsed.port)
    except (httpx.InvalidURL, ValueError) as error:
        raise ForbiddenTargetError(f"is not a URL: {error}") from error
    return parsed


def _authority(url: str) -> str:
    """Return the text between `//` and the path, as it was written."""
    return re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]


def _literal(host: str) -> str | None:
    """Return the address that a host spells out, 0x7f.1 and 2130706433 too, as `getaddrinfo` takes them."""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        pass
    try:
        return str(ip_address(host.partition("%")[0]))
    except ValueError:
        return None

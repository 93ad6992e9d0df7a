"""Which addresses a callback may reach: global ones, and what the operator allows."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

MAX_URL_LENGTH = 2048

# What `is_global` lets through although it ends inside somebody's network, or nowhere.
NEVER_GLOBAL = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "224.0.0.0/4",
        "::/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/23",
        "2002::/16",
        "fec0::/10",
        "ff00::/8",
    )
)


class ForbiddenTargetError(Exception):
    """A callback address that must not be connected to. The message says why."""


def check_url(url: str) -> None:
    """Check what can be told from the text alone, when a batch is submitted.

    Raises:
        ForbiddenTargetError: not http(s), no host, credentials in it, too long, or malformed.

    """
    if len(url) > MAX_URL_LENGTH:
        raise ForbiddenTargetError(f"must be at most {MAX_URL_LENGTH} characters")
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url):
        raise ForbiddenTargetError("must not contain spaces or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ForbiddenTargetError(f"is not a URL: {error}") from error
    if parts.scheme not in {"http", "https"}:
        raise ForbiddenTargetError("must be an http:// or https:// address")
    if not parts.hostname or port == 0:
        raise ForbiddenTargetError("must name a host")
    if parts.username is not None or parts.password is not None:
        raise ForbiddenTargetError("must not contain credentials")


def check_address(address: str, allowed: Sequence[IPNetwork]) -> None:
    """Check an address that a host name resolved to, before connecting to it.

    Raises:
        ForbiddenTargetError: the address is not global and not in one of the `allowed` networks.

    """
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    if any(ip in network for network in allowed):
        return
    if not ip.is_global or any(ip in network for network in NEVER_GLOBAL):
        raise ForbiddenTargetError(f"{ip} is not a public address")

from ipaddress import ip_network

import pytest

from worker.webhooks.targets import ForbiddenTargetError, Targets

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.192",
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.1.1.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1",
        "2002:7f00:1::",
        "2001::1",
        "fe80::1%eth0",
        "fec0::1",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "2001:db8::1",
    ],
)
def test_addresses_inside_somebodys_network_are_refused(address: str) -> None:
    with pytest.raises(ForbiddenTargetError):
        Targets().check_address(address, 443, is_tls=True)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_pass(address: str) -> None:
    Targets().check_address(address, 443, is_tls=True)


def test_the_operator_may_allow_networks() -> None:
    targets = Targets(LOOPBACK)
    targets.check_address("127.0.0.1", 9000, is_tls=False)
    targets.check_address("::ffff:127.0.0.1", 9000, is_tls=False)
    with pytest.raises(ForbiddenTargetError):
        targets.check_address("10.0.0.1", 443, is_tls=True)


def test_public_addresses_are_called_over_tls_at_the_usual_ports() -> None:
    for targets in (Targets(), Targets(LOOPBACK)):
        with pytest.raises(ForbiddenTargetError, match="https"):
            targets.check_address("8.8.8.8", 80, is_tls=False)
        with pytest.raises(ForbiddenTargetError, match=r"port 22$"):
            targets.check_address("8.8.8.8", 22, is_tls=True)


def test_the_operators_ports_hold_everywhere() -> None:
    targets = Targets(LOOPBACK, ports=(9000,))
    targets.check_address("127.0.0.1", 9000, is_tls=False)
    targets.check_address("8.8.8.8", 9000, is_tls=True)
    for address in ("127.0.0.1", "8.8.8.8"):
        with pytest.raises(ForbiddenTargetError, match=r"port 443$"):
            targets.check_address(address, 443, is_tls=True)


@pytest.mark.parametrize(
    "url", ["https://example.com", "https://example.com:8443/a?b=c", "https://[2606:4700::1]/"]
)
def test_plain_addresses_pass(url: str) -> None:
    Targets().check_url(url)


def test_http_needs_networks_of_the_operators() -> None:
    with pytest.raises(ForbiddenTargetError, match="https"):
        Targets().check_url("http://localhost:9000/hook")
    Targets(LOOPBACK).check_url("http://localhost:9000/hook")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a",
        "file:///etc/passwd",
        "https://",
        "https://a:99999/",
        "https://a:0/",
        "https://u:p@a/",
        "a" * 3000,
    ],
)
def test_odd_addresses_are_refused(url: str) -> None:
    with pytest.raises(ForbiddenTargetError):
        Targets(LOOPBACK).check_url(url)

from ipaddress import ip_network

import pytest

from worker.webhooks.targets import ForbiddenTargetError, check_address, check_url

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
        check_address(address, ())


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_pass(address: str) -> None:
    check_address(address, ())


def test_the_operator_may_allow_networks() -> None:
    check_address("127.0.0.1", LOOPBACK)
    check_address("::ffff:127.0.0.1", LOOPBACK)
    with pytest.raises(ForbiddenTargetError):
        check_address("10.0.0.1", LOOPBACK)


@pytest.mark.parametrize(
    "url", ["https://example.com", "http://example.com:8080/a?b=c", "https://[2606:4700::1]/"]
)
def test_plain_addresses_pass(url: str) -> None:
    check_url(url)


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
        check_url(url)

"""Any text at all as a callback address: refused with a reason, or an address that is safe to look up."""

import base64
import hmac
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fixtures.hostile import LITERALS, URLS
from worker.webhooks.signing import SECRET_PREFIX, new_secret, sign
from worker.webhooks.targets import MAX_URL_LENGTH, PUBLIC_PORTS, ForbiddenTargetError, Targets, port_of

PIECES = st.sampled_from(
    [
        *LITERALS.values(),
        *"@:/?#[]%\\.",
        "https://",
        "http:",
        "example.com",
        "443",
        "8443",
        "\x00",
        "\u3002",
        "%2e",
    ]
)
URLISH = st.one_of(
    st.text(max_size=80),
    st.lists(PIECES | st.text(max_size=4), max_size=10).map("".join),
    st.lists(PIECES | st.text(max_size=4), max_size=10).map(lambda parts: "https://" + "".join(parts)),
)


def check(text: str) -> None:
    try:
        url = Targets().check_url(text)
    except ForbiddenTargetError:
        return
    assert isinstance(url, httpx.URL)
    assert (url.scheme, port_of(url) in PUBLIC_PORTS, len(text) <= MAX_URL_LENGTH) == ("https", True, True)
    assert url.host
    assert not url.userinfo
    try:
        literal = ip_address(url.host)
    except ValueError:
        return
    assert literal.is_global


@settings(max_examples=400)
@given(URLISH)
@example("https://@127.0.0.1/")
@example(URLS["an encoded at sign"])
def test_any_text_is_refused_or_safe(text: str) -> None:
    check(text)


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
@settings(max_examples=50_000, database=None)
@given(URLISH)
def test_a_great_many_texts_are_refused_or_safe(text: str) -> None:
    check(text)


@settings(max_examples=300)
@given(st.integers(0, 2**32 - 1))
def test_what_carries_an_inner_address_inside_is_refused_with_it(number: int) -> None:
    """The IPv6 forms of an IPv4 address are never more open than the address itself."""
    inner = IPv4Address(number)
    forms = [
        IPv6Address((0xFFFF << 32) | number),  # v4-mapped
        IPv6Address(number),  # v4-compatible
        IPv6Address((0x64FF9B << 96) | number),  # NAT64
        IPv6Address((0x2002 << 112) | (number << 80)),  # 6to4
    ]

    def passes(address: IPv4Address | IPv6Address) -> bool:
        try:
            Targets().check_address(str(address), 443, is_tls=True)
        except ForbiddenTargetError:
            return False
        return True

    assert passes(forms[0]) == passes(inner)
    assert not any(passes(form) for form in forms[1:])
    if not inner.is_global:
        assert not passes(inner)


STORABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TIMES = st.floats(0, 2**36).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@settings(max_examples=200)
@given(STORABLE, TIMES, STORABLE)
def test_a_signature_is_that_of_the_standard(event_id: str, at: datetime, body: str) -> None:
    """HMAC-SHA256 of id, time and body, computed here as the standard says, not by the library."""
    key = new_secret()
    headers = sign([key], event_id=event_id, at=at, body=body)
    timestamp = headers["webhook-timestamp"]
    assert (headers["webhook-id"], timestamp) == (event_id, str(int(at.timestamp())))
    message = f"{event_id}.{timestamp}.{body}".encode()
    digest = hmac.digest(base64.b64decode(key.removeprefix(SECRET_PREFIX)), message, "sha256")
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"

import pytest

from worker.contract.callbacks import origin_of


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://example.com/hooks?a=1#b", "https://example.com"),
        ("HTTPS://Example.COM/hooks", "https://example.com"),
        ("https://example.com:443/hooks", "https://example.com"),
        ("https://example.com:8443", "https://example.com:8443"),
        ("https://example.com?http://other.example", "https://example.com"),
        ("http://[::1]:9000/hook", "http://[::1]:9000"),
        ("https://example.com:port/", "https://example.com:port/"),
    ],
)
def test_an_origin_is_where_a_request_goes(url: str, origin: str) -> None:
    assert origin_of(url) == origin

import ssl

import pytest
from kombu import Connection

from worker.settings import read_settings


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        ("rediss://:secret@redis:6379/0", ssl.CERT_REQUIRED),
        ("rediss://:secret@redis:6379/0?ssl_ca_certs=/ca.crt", ssl.CERT_REQUIRED),
        ("rediss://:secret@redis:6379/0?ssl_cert_reqs=none", ssl.CERT_NONE),
    ],
)
def test_the_certificate_of_redis_is_checked(given: str, checked: ssl.VerifyMode) -> None:
    """By itself kombu accepts any: whoever sits between reads every ticket and may send their own."""
    connection = Connection(read_settings(redis_url=given, database_url="postgresql://").redis_url)
    assert connection.ssl["ssl_cert_reqs"] == checked
    assert (connection.hostname, connection.password, connection.virtual_host) == ("redis", "secret", "0")

"""Sign webhooks by Standard Webhooks (https://www.standardwebhooks.com).

`python -m worker.webhooks.signing` prints a fresh secret.
"""

import base64
import hashlib
import hmac
import secrets
import sys
from collections.abc import Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix every secret has
SECRET_BYTES = 32


def new_secret() -> str:
    """Return a random secret, `whsec_<base64>`."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def sign(keys: Sequence[str], *, event_id: str, timestamp: int, body: bytes) -> str:
    """Return the `webhook-signature` value: `v1,` and HMAC-SHA256 of `<id>.<timestamp>.<body>`.

    Args:
        keys: `whsec_<base64>`, one signature each: a receiver accepts any that it can verify.
        event_id: The `webhook-id` header, the same on every retry.
        timestamp: The `webhook-timestamp` header, Unix seconds.
        body: The exact bytes that are sent.

    """
    message = f"{event_id}.{timestamp}.".encode() + body
    digests = [
        hmac.digest(base64.b64decode(key.removeprefix(SECRET_PREFIX)), message, hashlib.sha256)
        for key in keys
    ]
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


if __name__ == "__main__":
    sys.stdout.write(new_secret() + "\n")

"""Sign webhooks by Standard Webhooks (https://www.standardwebhooks.com).

`python -m worker.webhooks.signing` prints a fresh secret.
"""

import base64
import secrets
import sys
from collections.abc import Sequence
from datetime import datetime

from standardwebhooks import Webhook

SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix every secret has
SECRET_BYTES = 32


def new_secret() -> str:
    """Return a random secret, `whsec_<base64>`."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def sign(keys: Sequence[str], *, event_id: str, at: datetime, body: str) -> dict[str, str]:
    """Return the headers that prove to a receiver that it was we who sent a body.

    Args:
        keys: `whsec_<base64>`, one signature each: a receiver accepts any that it can verify.
        event_id: The same on every retry.
        at: The time of the attempt, in UTC.
        body: The exact text that is sent.

    """
    signatures = [Webhook(key).sign(event_id, at, body) for key in keys]
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


if __name__ == "__main__":
    sys.stdout.write(new_secret() + "\n")

"""Seal endpoints' secrets for the database: encrypt and authenticate them with Fernet.

`python -m worker.webhooks.sealing` prints a fresh key for HEADRACE_SECRET_KEY.
"""

import sys
from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet


class SealError(Exception):
    """A secret cannot be sealed or opened. The message says what to set."""


class Sealer:
    """Seals with the first key, opens with any key: put a new key in front of the old one.

    Args:
        keys: 32 random bytes each, in URL-safe base64.

    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys]) if keys else None

    def seal(self, secret: str) -> str:
        """Return the secret, encrypted.

        Raises:
            SealError: there is no key.

        """
        return self._keys().encrypt(secret.encode()).decode()

    def open(self, sealed: str) -> str:
        """Return the secret that was sealed.

        Raises:
            SealError: there is no key, or none of them sealed the secret.

        """
        try:
            return self._keys().decrypt(sealed.encode()).decode()
        except InvalidToken as error:
            raise SealError("no key in HEADRACE_SECRET_KEY can decrypt the endpoint's secret") from error

    def reseal(self, sealed: str) -> str:
        """Seal a sealed secret again, with the first key.

        Raises:
            SealError: as `open`.

        """
        return self.seal(self.open(sealed))

    def _keys(self) -> MultiFernet:
        if self._fernet is None:
            raise SealError(
                "webhook endpoints need HEADRACE_SECRET_KEY; `python -m worker.webhooks.sealing` prints a key"
            )
        return self._fernet


def new_key() -> str:
    """Return a random key."""
    return Fernet.generate_key().decode()


if __name__ == "__main__":
    sys.stdout.write(new_key() + "\n")

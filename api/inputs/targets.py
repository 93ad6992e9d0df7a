"""Checks a receiver's address when it is given; the rest is checked at each call."""

from api.errors import InvalidInputError
from worker.settings import Settings
from worker.webhooks.targets import ForbiddenTargetError, Targets


def check_url(config: Settings, url: str, *, param: str) -> str:
    """Return the address if it may be called.

    Raises:
        InvalidInputError: the address may never be called; the message names `param`.

    """
    try:
        Targets(config.allowed_networks, config.webhook_ports).check_url(url)
    except ForbiddenTargetError as error:
        raise InvalidInputError(f"{param}: {error}", param=param, code="forbidden_url") from error
    return url

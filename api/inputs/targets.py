"""What can be told of a receiver's address when it is given to us; the rest is checked at each call."""

from api.errors import InvalidInputError
from worker.settings import Settings
from worker.webhooks.targets import ForbiddenTargetError, Targets


def check_url(config: Settings, url: str, *, param: str) -> str:
    """Return the address if it may be called.

    Raises:
        InvalidInputError: it never will be; names `param`.

    """
    try:
        Targets(config.allowed_networks, config.webhook_ports).check_url(url)
    except ForbiddenTargetError as error:
        raise InvalidInputError(f"{param}: {error}", param=param, code="forbidden_url") from error
    return url

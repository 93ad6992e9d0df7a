"""Identifies the caller by API key, or as the one tenant of a deployment without keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from fastapi.security.utils import get_authorization_scheme_param
from starlette.types import Scope as HttpScope

from api.errors import AuthenticationError, PermissionDeniedError
from worker.contract.access import DEFAULT_TENANT, Scope
from worker.store.database.session import Store
from worker.store.tenants import api_keys

HOW = (
    "Send it as `Authorization: Bearer hr_...` or as `x-api-key: hr_...`. `headrace keys create` makes a key."
)
KEY_HEADER = "x-api-key"  # of Anthropic's clients


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and its rights. `key` is the prefix of its key, None without keys."""

    tenant_id: str
    key: str | None
    scopes: frozenset[Scope]
    calls_per_minute: int | None = None

    @property
    def actor(self) -> str:
        """The name of the caller in the audit log."""
        return "nobody in particular" if self.key is None else f"key:{self.key}"


NOBODY_IN_PARTICULAR = Caller(DEFAULT_TENANT, None, frozenset(Scope))


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the API key that a call came with."""
    scheme, key = get_authorization_scheme_param(headers.get("authorization"))
    return key if key and scheme.lower() == "bearer" else headers.get(KEY_HEADER) or None


def recognize(store: Store, key: str | None) -> Caller:
    """Return the caller that owns a key.

    Raises:
        AuthenticationError: the key is missing, unknown, expired or revoked.

    """
    if key is None:
        raise AuthenticationError(f"No API key was given. {HOW}", code="missing_api_key")
    with store.transaction() as session:
        found = api_keys.recognize(session, key)
    if found is None:
        raise AuthenticationError(
            "This API key is unknown, has expired or was revoked. Use another key.", code="invalid_api_key"
        )
    return Caller(found.tenant_id, found.prefix, found.scopes, found.calls_per_minute)


def check_local(scope: HttpScope) -> None:
    """Refuse what a stranger's web page could send to an API without keys.

    Such a page can resolve its own name to 127.0.0.1, but the browser still sends that name as Host. It can
    also send a form to 127.0.0.1, but the browser then sends its Origin. Nobody can register a name without
    a dot.

    Raises:
        PermissionDeniedError: the Host header, or the Origin, is not of this machine.

    """
    headers = dict(scope["headers"])
    host = headers.get(b"host", b"").decode("latin-1")
    origin = headers.get(b"origin", b"").decode("latin-1")
    for name in (host, origin.partition("://")[2] or origin):
        if name == "null" or not _is_local(name):  # `null`: the page hides its origin
            raise PermissionDeniedError(
                f"Without API keys (HEADRACE_AUTH=off) Headrace answers only this machine, and {name[:100]!r}"
                " is not a name of it. Use http://127.0.0.1, or set HEADRACE_AUTH=keys.",
                code="not_local",
            )


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return "." not in name.rstrip(".") or name.lower().endswith(".localhost")

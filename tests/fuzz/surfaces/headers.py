"""Short texts of strangers: headers, windows, addresses, secrets, and what receivers answer."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache

import httpx

from api.batches.schemas import MAX_WINDOW, parse_window
from api.errors import ApiError
from api.files.routes import _range as read_range
from api.guards import auth
from api.guards.middleware import FILE_PATHS
from tests.fixtures.hostile import LITERALS, URLS
from tests.fuzz.chaos import Chaos
from tests.fuzz.surfaces.storable import check_error
from worker.webhooks.backoff import retry_in
from worker.webhooks.sealing import Sealer, SealError, new_key
from worker.webhooks.sender import _retry_after as retry_after
from worker.webhooks.targets import MAX_URL_LENGTH, PUBLIC_PORTS, ForbiddenTargetError, Targets, port_of

DAY_SECONDS = 86_400
RANGES = ("bytes=", "0", "-", "1", "99", "12345", ",", " ", "items=", "bytes=0-9")
HOSTS = (
    "localhost",
    "127.0.0.1",
    "[::1]",
    ":8000",
    ":",
    ".",
    "example.com",
    "evil.localhost",
    "1",
    "@",
    "[",
    "]",
    "%00",
)
DATES = (
    "Wed, ",
    "21 ",
    "Oct ",
    "2026 ",
    "07:28:00 ",
    "GMT",
    "+0000",
    "-9999",
    "99999999999",
    "00:00:61 ",
    "Feb 30 ",
    "1",
    "-",
    ",",
)
URL_PIECES = (
    *LITERALS.values(),
    *"@:/?#[]%\\.",
    "https://",
    "http:",
    "example.com",
    "443",
    "8443",
    "\u3002",
    "%2e",
)


def ranges(chaos: Chaos) -> bool:
    """Read a Range header: within the file, or refused."""
    num_bytes = chaos.choice((0, 1, 10, 12_346, 2**40))
    try:
        start, end = read_range(chaos.line_of(RANGES), num_bytes)
    except ApiError as error:
        assert error.status == 416
        assert error.message
        return False
    assert 0 <= start <= end <= num_bytes
    return True


def windows(chaos: Chaos) -> bool:
    """Read a completion window."""
    from api.batches.schemas import _window

    text = chaos.line_of(("1", "9", "24", "0", "s", "m", "h", "d", "90s", " ", "\n"), 4)
    try:
        found = _window(text)
    except ValueError as error:
        assert str(error)
        return False
    assert timedelta(0) < parse_window(found) <= MAX_WINDOW
    return True


def hosts(chaos: Chaos) -> bool:
    """Tell this machine's names from those that a stranger can register."""
    host = chaos.line_of(HOSTS, 5).encode("latin-1", "ignore")
    try:
        auth.check_local({"type": "http", "headers": [(b"host", host)]})
    except ApiError as error:
        assert error.status == 403
        check_error(error)
        return False
    assert b"example.com" not in host.lower().split(b".localhost")[0] or b".localhost" in host.lower()
    return True


def paths(chaos: Chaos) -> bool:
    """Find the routes that have limits of their own: no other path slips through."""
    path = chaos.line_of(("/v1/", "files", "/", "uploads", "/parts", "x", "..", "\n"), 8)
    if not FILE_PATHS.fullmatch(path):
        return False
    assert path == "/v1/files" or (
        path.startswith("/v1/uploads/") and path.endswith("/parts") and path.count("/") == 4
    )
    return True


def answers(chaos: Chaos) -> bool:
    """Read what a receiver says of when to come back."""
    now = datetime.now(UTC) + timedelta(seconds=chaos.choice((0, 5, -5, 10**6, 10**9)))
    text = chaos.choice(
        (str(chaos.scalar()), format_datetime(now), chaos.line_of(DATES), chaos.line_of(DATES))
    )
    raw = text.encode(errors="ignore")
    response = httpx.Response(503, headers=[(b"retry-after", raw)])
    seconds = retry_after(response)
    wait = retry_in(chaos.randrange(1, 12), retry_after=seconds)
    assert wait is None or timedelta(0) < wait <= timedelta(seconds=DAY_SECONDS * 1.2)
    return seconds is not None


def addresses(chaos: Chaos) -> bool:
    """Read a callback address: refused, or one that is safe to look up."""
    url = chaos.choice(("", "https://", "https://example.com")) + chaos.line_of(URL_PIECES)
    if chaos.random() < 0.1:
        url = chaos.choice(list(URLS.values())) + chaos.text()
    try:
        parsed = Targets().check_url(url)
    except ForbiddenTargetError as error:
        assert str(error)
        return False
    assert (parsed.scheme, port_of(parsed) in PUBLIC_PORTS, len(url) <= MAX_URL_LENGTH) == (
        "https",
        True,
        True,
    )
    assert parsed.host
    assert not parsed.userinfo
    return True


@cache
def _sealer() -> Sealer:
    return Sealer([new_key(), new_key()])


def seals(chaos: Chaos) -> bool:
    """Open a sealed secret that somebody has changed."""
    sealed = _sealer().seal("whsec_secret")
    given = chaos.damaged(sealed.encode(), chaos.choice((0, 1, 2))).decode("latin-1")
    try:
        opened = _sealer().open(given)
    except SealError as error:
        assert str(error)
        return False
    assert opened == "whsec_secret"
    return True

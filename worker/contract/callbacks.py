"""Name the origin of a callback's URL, by the parser of the requests to it: two may see two hosts."""

import httpx


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL; the URL itself if it is not valid, as none that was checked."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return url
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}"

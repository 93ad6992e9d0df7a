"""Finds a model and the API that serves it, ours or another one in OpenAI's form."""

from dataclasses import dataclass, replace
from typing import Any

from api.cli.connection import Connection

ADDRESS = "A model of the API, or the URL of one in OpenAI's form; URL#MODEL names one of its models."


@dataclass(frozen=True, slots=True)
class Served:
    """A model, and the API that serves it."""

    api: Connection
    model: str

    def call(self, path: str, **body: Any) -> Any:
        """Post a body that names the model to a path of OpenAI's API; raises as `Connection.call` does."""
        return self.api.call("POST", f"/v1/{path}", json={"model": self.model, **body})


def find_served(own: Connection, name: str, key: str | None = None) -> Served:
    """Return the model of an address, by default the first that is served there.

    `key` is for another API than our `own`, which gets its own key. Raises RefusedError, or TransportError.
    """
    if "://" not in name:
        return Served(own, name)
    url, _, model = name.partition("#")
    url = url.rstrip("/").removesuffix("/v1")
    api = own if url == own.url else replace(own, url=url, api_key=key)
    return Served(api, model or api.call("GET", "/v1/models")["data"][0]["id"])

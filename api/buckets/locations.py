"""Names the buckets that customers may read from and write to, as the operator's file lists them.

A request names an object by its URI, and never an endpoint or a credential: those come from the file alone.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from api.errors import InvalidInputError, PermissionDeniedError
from worker.settings import refuse

SCHEMES = ("s3", "gs", "az")
MAX_URI_CHARACTERS = 1024
HELP = "its operator names them in HEADRACE_BUCKETS"


def _bucket_url(url: str) -> str:
    scheme, separator, rest = url.rstrip("/").partition("://")
    if scheme not in SCHEMES or not separator or not rest:
        raise ValueError("must be s3://BUCKET, gs://BUCKET or az://CONTAINER, perhaps with /PREFIX")
    return url.rstrip("/")


class Bucket(BaseModel):
    """A bucket, or a prefix in one, and how it is reached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, AfterValidator(_bucket_url)]
    access: Literal["read", "write", "both"] = "both"
    tenants: tuple[str, ...] | None = None  # None: all
    allow_http: bool = False
    options: dict[str, str] = Field(default_factory=dict)  # of the store: endpoint, credentials, region

    def admits(self, tenant: str, *, to_write: bool) -> bool:
        """Return whether a tenant may read, or write, objects here."""
        is_theirs = self.tenants is None or tenant in self.tenants
        return is_theirs and self.access in {"both", "write" if to_write else "read"}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bucket: list[Bucket] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Place:
    """An object in a bucket, which need not exist."""

    bucket: Bucket
    key: str  # after the bucket's prefix

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self.key.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of a deployment."""

    listed: Sequence[Bucket] = ()  # the longest URL first

    @classmethod
    def load(cls, file: Path | None) -> "Buckets":
        """Return the buckets that a TOML file lists; end the process if it cannot be used."""
        if file is None:
            return cls()
        try:
            given: dict[str, Any] = tomllib.loads(file.read_text())
            listed = _File.model_validate(given).bucket
        except (OSError, UnicodeDecodeError) as error:
            refuse(f"HEADRACE_BUCKETS: {file} cannot be read: {getattr(error, 'strerror', error)}")
        except tomllib.TOMLDecodeError as error:
            refuse(f"HEADRACE_BUCKETS: {file} is not TOML: {error}")
        except ValidationError as error:  # its own text would show the credentials
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            refuse(f"HEADRACE_BUCKETS: {file}: {place}: {first['msg']}")
        return cls(tuple(sorted(listed, key=lambda one: len(one.url), reverse=True)))

    def find(self, uri: str, tenant: str, *, to_write: bool, param: str) -> Place:
        """Return the object of a URI.

        Raises:
            InvalidInputError: this is no URI of an object in a bucket, or the deployment has no buckets.
            PermissionDeniedError: the tenant may not use it.

        """
        if not self.listed:
            message = f"{param}: this deployment uses no buckets of customers; {HELP}"
            raise InvalidInputError(message, param=param, code="no_buckets")
        _check(uri, param)
        holding = [bucket for bucket in self.listed if uri.startswith(f"{bucket.url}/")]
        for bucket in holding:
            # A rule about a prefix is not passed by through one about the whole bucket.
            if bucket.url == holding[0].url and bucket.admits(tenant, to_write=to_write):
                return Place(bucket, uri[len(bucket.url) + 1 :])
        verb = "write to" if to_write else "read from"
        message = f"{param}: {uri[:200]} is in no bucket that you may {verb}; {HELP}"
        raise PermissionDeniedError(message, param=param, code="bucket_not_allowed")


def _check(uri: str, param: str) -> None:
    scheme, separator, rest = uri.partition("://")
    if scheme not in SCHEMES or not separator:
        message = f"{param}: must begin with {', '.join(f'{one}://' for one in SCHEMES)}"
        raise InvalidInputError(message, param=param)
    parts = rest.split("/")
    if len(parts) < 2 or not all(parts) or {".", ".."} & set(parts) or not rest.isprintable():
        message = f"{param}: must be {scheme}://BUCKET/KEY, without empty parts, `.` or `..`"
        raise InvalidInputError(message, param=param)
    if set(rest) & set("?#\\*%"):
        raise InvalidInputError(f"{param}: must not have any of ? # \\ * %", param=param)

"""Read the environment, which no other module does. Must not know what the settings are used for."""

import base64
import os
import sys
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import parse_qs, urlsplit

from dotenv import dotenv_values
from pydantic import AfterValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

DEMO_MODEL = Path(__file__).resolve().parent.parent / "models" / "demo"
DEFAULT_DATA_DIR = ".data"
DEFAULT_HOST = "127.0.0.1"
DATABASE_URL_FILE = "database_url"  # of an embedded Postgres, in the data directory while it runs
SHARD_SIZES = (64, 256)  # requests of a full shard, from slow ones to quick ones
EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h: starting the process again does not help
LOOPBACK_NETWORKS = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))

IPNetwork = IPv4Network | IPv6Network


def _psycopg_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.split("+")[0] not in {"postgres", "postgresql"}:
        raise ValueError("must be a postgresql:// address")
    return f"postgresql+psycopg://{rest}"


def _redis_url(url: str) -> str:
    scheme = url.partition("://")[0]
    if scheme not in {"redis", "rediss"}:
        raise ValueError("must be a redis:// or rediss:// address")
    if scheme == "rediss" and "ssl_cert_reqs" not in parse_qs(urlsplit(url).query):
        # Celery would accept any certificate where the address does not say that it must be checked.
        url += f"{'&' if '?' in url else '?'}ssl_cert_reqs=required"
    return url


def _bucket_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if scheme != "s3" or not separator or not rest:
        raise ValueError("must be s3://BUCKET or s3://BUCKET/PREFIX")
    return url


def _split(value: SecretStr | None) -> list[str]:
    return [] if value is None else [part.strip() for part in value.get_secret_value().split(",")]


def _num_bytes(text: str, *, altchars: bytes | None = None) -> int | None:
    try:
        return len(base64.b64decode(text, altchars, validate=True))
    except ValueError:
        return None


class Settings(BaseSettings):
    """Holds every setting, with its default. Variables are `HEADRACE_*` unless an alias says otherwise."""

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_", env_ignore_empty=True, frozen=True, extra="ignore", populate_by_name=True
    )

    # Services: set by the user, or by `python -m worker.embedded` around the processes it starts.
    database_url: Annotated[str, AfterValidator(_psycopg_url)] = Field(validation_alias="DATABASE_URL")
    # Postgres itself, where DATABASE_URL names a pooler in transaction mode. None: it does not.
    database_direct_url: Annotated[str, AfterValidator(_psycopg_url)] | None = Field(
        default=None, validation_alias="DATABASE_DIRECT_URL"
    )
    redis_url: Annotated[str, AfterValidator(_redis_url)] = Field(validation_alias="REDIS_URL")

    data_dir: Path = Path(DEFAULT_DATA_DIR)

    # The API.
    host: str = DEFAULT_HOST
    auth: Literal["keys", "off"] = "keys"
    port: int = Field(default=8000, ge=1, le=65535, validation_alias="PORT")
    flower_port: int = Field(default=5555, ge=1, le=65535, validation_alias="FLOWER_PORT")
    max_body_bytes: int = Field(default=64 << 20, gt=0)
    max_requests_per_batch: int = Field(default=50_000, gt=0)
    max_prompt_bytes: int = Field(default=1 << 20, gt=0)
    # Other names of models, as ALIAS=MODEL, ...
    model_aliases: Annotated[dict[str, str], NoDecode] = Field(default_factory=dict)
    wait_seconds: float = Field(default=600.0, gt=0, description="how long a synchronous request may wait")
    max_file_bytes: int = Field(default=200 << 20, gt=0)
    max_line_bytes: int = Field(default=4 << 20, gt=0)
    wrong_lines: Literal["refuse", "fail"] = "refuse"  # of a batch's input

    # Where files are kept: s3://bucket/prefix, or None for a directory in data_dir.
    blob_url: Annotated[str, AfterValidator(_bucket_url)] | None = None

    buckets: Path | None = None  # a TOML file of those that customers may use (api/buckets/locations.py)

    # The engine.
    model: Path = DEMO_MODEL
    # Those that the API takes requests for beside `model`, and that one gpu worker of this machine serves in
    # turns; without them it serves `model`.
    models: Annotated[tuple[Path, ...], NoDecode] = ()
    # worker/values/parsing.py; None: as its chat template says.
    model_family: (
        Literal["hermes", "coder", "deepseek", "llama", "mistral", "gemma", "harmony", "none"] | None
    ) = None
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["f32", "bf16", "int8", "fp8"] = "f32"
    kv_cache_dtype: Literal["plain", "int8", "fp8"] | None = None  # None: by device and dtype
    threads: int | None = Field(default=None, gt=0)
    cpu_workers: int = Field(default=1, gt=0)  # that `up` starts on a CPU, each on cores of its own
    # None: a default for the device (worker/engine/requests/config.py).
    max_num_sequences: int | None = Field(default=None, gt=0)
    max_tokens_per_step: int | None = Field(default=None, gt=0)
    kv_cache_bytes: int | None = Field(default=None, gt=0)
    block_size: int = Field(default=16, ge=1, le=256)
    prefix_cache: Literal["on", "off"] = "on"
    admission: Literal["fifo", "length-aware"] = "length-aware"
    prefix_sharing: Literal["tenant", "deployment"] = "tenant"
    speculation: Literal["auto", "off"] = "off"
    draft_model: Path | None = None
    # When the engine starts requests, and which ones together (worker/engine/scheduling/batch_gate.py).
    batch_policy: Literal[
        "continuous",
        "fixed",
        "window",
        "adaptive",
        "priority",
        "length-buckets",
        "token-budget",
        "memory",
    ] = "continuous"
    batch_timeout_ms: float = Field(default=50.0, ge=0, allow_inf_nan=False)
    batch_size: int = Field(default=32, gt=0)
    batch_latency_ms: float = Field(default=250.0, gt=0, allow_inf_nan=False)
    batch_priority_seconds: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    batch_lengths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], NoDecode] = (64, 256, 1024)
    batch_tokens: int = Field(default=16_384, gt=0)
    target_latency_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    batch_memory_share: float = Field(default=0.5, gt=0, le=1)

    # Shards, leases and the dispatcher.
    shard_size: int | None = Field(
        default=None,
        gt=0,
        description="requests one message carries; unset: 64 to 256, as many as a worker runs in 4 seconds",
    )
    shards_in_flight: int = Field(default=10, gt=0, description="shards that feed one engine at once")
    interactive_in_flight: int = Field(
        default=16, gt=0, description="interactive shards that run beside those of batches"
    )
    lease_seconds: float = Field(default=6.0, gt=0, description="how long a silent worker keeps its shards")
    save_seconds: float = Field(default=1.5, gt=0, description="how often a shard saves results and progress")
    checkpoint_tokens: int = Field(
        default=256,
        gt=0,
        description="a running request's output is stored whenever it has grown by so many",
    )
    drain_seconds: float = Field(
        default=10.0, ge=0, description="how long SIGTERM lets running requests finish"
    )
    step_timeout_seconds: float = Field(default=120.0, gt=0, description="a longer step means a hung engine")
    max_attempts: int = Field(
        default=2,
        gt=0,
        description="workers lost before a shard runs alone, or a lone request fails",
    )
    sweep_seconds: float = Field(
        default=1.0, gt=0, description="how often the dispatcher looks round unasked"
    )
    retention_days: float | None = Field(
        default=None, gt=0, description="how long after a batch's end its requests and results are kept"
    )

    # Scaling (docs/autoscaling.md). None: nobody starts and stops gpu workers by what is wanted.
    max_workers: int | None = Field(default=None, gt=0)
    max_spot_workers: int = Field(default=0, ge=0)
    min_workers: int = Field(default=0, ge=0)
    cold_start_seconds: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    target_seconds: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    capacity: Literal["on-demand", "spot"] = "on-demand"  # what this gpu worker runs on

    # The response cache.
    cache: Literal["off", "exact", "semantic"] = "off"
    cache_ttl_seconds: float = Field(default=86_400.0, gt=0)
    cache_similarity: float = Field(default=0.95, gt=0, le=1, allow_inf_nan=False)
    cache_checks: float = Field(
        default=0.05,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="share of semantic hits that run all the same",
    )
    cache_shadow: Literal["on", "off"] = "off"
    embedding_model: Path | None = None  # None: the served model

    # Webhooks.
    webhook_secret: SecretStr | None = None
    secret_key: SecretStr | None = None
    webhook_timeout_seconds: float = Field(default=15.0, gt=0)
    webhook_allowed_networks: Annotated[tuple[IPNetwork, ...] | None, NoDecode] = None
    webhook_ports: Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...] | None, NoDecode] = None
    callbacks_in_flight: int = Field(default=8, gt=0)
    callbacks_per_receiver: int = Field(default=2, gt=0)

    # Tool loops.
    max_tool_turns: int = Field(default=32, gt=0)
    max_tool_seconds: float = Field(default=60.0, gt=0)
    tool_calls_in_flight: int = Field(default=16, gt=0, description="calls that one shard makes at once")

    # Prices and metrics.
    price_per_device_hour: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    price_per_million_input_tokens: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    price_per_million_output_tokens: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
    metrics_tenants: int = Field(default=50, ge=0)

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @field_validator("webhook_allowed_networks", "webhook_ports", "batch_lengths", "models", mode="before")
    @classmethod
    def _split_list(cls, value: object) -> object:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    @field_validator("model_aliases", mode="before")
    @classmethod
    def _split_aliases(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [[name.strip() for name in pair.split("=")] for pair in value.split(",") if pair.strip()]
        if any(len(pair) != 2 or not all(pair) for pair in pairs):
            raise ValueError("must be ALIAS=MODEL, separated by commas, such as gpt-4o-mini=demo")
        aliases = dict(pairs)
        if len(aliases) < len(pairs):
            raise ValueError("must name each alias once")
        return aliases

    @field_validator("batch_lengths")
    @classmethod
    def _check_lengths(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if value != tuple(sorted(set(value))):
            raise ValueError("must be lengths in tokens, the shortest first")
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _check_secret(cls, value: SecretStr | None) -> SecretStr | None:
        for secret in _split(value):
            if not secret.startswith("whsec_") or not _num_bytes(secret.removeprefix("whsec_")):
                raise ValueError("must be whsec_ and base64, as `python -m worker.webhooks.signing` prints")
        return value

    @field_validator("auth")
    @classmethod
    def _check_auth(cls, value: str, info: ValidationInfo) -> str:
        host = info.data.get("host", "")
        if value == "off" and not is_loopback(host):
            raise ValueError(
                f"off is for loopback only: whoever reaches {host} could read and submit everything"
            )
        return value

    @field_validator("secret_key")
    @classmethod
    def _check_key(cls, value: SecretStr | None) -> SecretStr | None:
        if any(_num_bytes(key, altchars=b"-_") != 32 for key in _split(value)):
            raise ValueError("must be 32 bytes in base64, as `python -m worker.webhooks.sealing` prints")
        return value

    @property
    def direct_url(self) -> str:
        """The address for what needs a session of its own: listening, Presence, migrations, commands."""
        return self.database_direct_url or self.database_url

    @property
    def has_pooler(self) -> bool:
        """Return whether DATABASE_URL names a pooler, so that only a transaction has a session."""
        return self.direct_url != self.database_url

    @property
    def shard_sizes(self) -> tuple[int, int]:
        """The fewest and the most requests of a full shard (worker/forecasts/forecaster.py chooses)."""
        return SHARD_SIZES if self.shard_size is None else (self.shard_size, self.shard_size)

    @property
    def webhook_secrets(self) -> list[str]:
        """The secrets that sign callbacks; each gives one signature."""
        return _split(self.webhook_secret)

    @property
    def secret_keys(self) -> list[str]:
        """The keys of endpoints' secrets: the first one seals, every one opens."""
        return _split(self.secret_key)

    @property
    def allowed_networks(self) -> tuple[IPNetwork, ...]:
        """The non-global networks that a callback may still reach.

        A caller of an API that listens on loopback is on this machine already, so there
        loopback callbacks are allowed unless the setting says otherwise.
        """
        if self.webhook_allowed_networks is not None:
            return self.webhook_allowed_networks
        return LOOPBACK_NETWORKS if self.listens_on_loopback else ()

    @property
    def listens_on_loopback(self) -> bool:
        """Return whether only this machine can reach the API."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address, or the name of one."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@cache
def settings() -> Settings:
    """Return the process's settings, read once; end the process if a value cannot be used."""
    return read_settings()


# For a command that reads the settings and uses neither service.
NO_SERVICES = {"database_url": "postgresql://", "redis_url": "redis://"}


def read_settings(**given: Any) -> Settings:
    """Return the settings, of which some may be `given`; end the process if a value cannot be used."""
    try:
        return Settings(**given)
    except ValidationError as error:
        refuse("\n".join(f"{_variable(str(e['loc'][0]))}: {e['msg']}" for e in error.errors()))


def read_env_file(file: Path) -> dict[str, str]:
    """Return the variables of an environment file that have no value yet; none if there is no file."""
    found = dotenv_values(file, interpolate=False)
    return {name: value for name, value in found.items() if value and not os.environ.get(name)}


def take_env_file(file: Path) -> None:
    """Set the variables of an environment file that have no value yet."""
    os.environ.update(read_env_file(file))


def refuse(problem: str) -> NoReturn:
    """End the process because its configuration is wrong. The problem names what to change.

    Raises:
        SystemExit: with EXIT_CONFIGURATION.

    """
    sys.stderr.write(f"{problem}\n")
    raise SystemExit(EXIT_CONFIGURATION)


def direct_url() -> str:
    """Return the address of Postgres itself, or of the embedded Postgres that runs on the data directory.

    Raises:
        SystemExit: none exists, or it is not a Postgres address.

    """
    name = "DATABASE_DIRECT_URL" if os.environ.get("DATABASE_DIRECT_URL") else "DATABASE_URL"
    url = os.environ.get(name)
    if not url:
        file = Path(os.environ.get("HEADRACE_DATA_DIR") or DEFAULT_DATA_DIR).expanduser() / DATABASE_URL_FILE
        try:
            url = file.read_text()
        except FileNotFoundError:
            raise SystemExit(f"no database: set DATABASE_URL or run `headrace up` (no {file})") from None
    try:
        return _psycopg_url(url)
    except ValueError as error:
        raise SystemExit(f"{name}: {error}") from None


def _variable(name: str) -> str:
    return name.upper() if name.isupper() else f"HEADRACE_{name.upper()}"

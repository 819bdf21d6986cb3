"""Declares the settings: one frozen tree with the type, bounds, default and description of each.

`settings_sources` reads them. A setting that is declared as `Live` changes while a program runs, when it reloads its
settings (`live_settings`); the others need a restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from orchestrator.core.durability import Level
from orchestrator.core.errors import InvalidInput
from orchestrator.core.health_address import parse_health_address
from orchestrator.core.ids import check_name
from orchestrator.core.rates import ANY_STARTS, Rate, parse_amount, parse_rate
from orchestrator.core.redis_url import RedisUrl, Verify, parse_url, url_problem
from orchestrator.core.setting_checks import check_pool, check_prefix

ENV_PREFIX: Final = "ORC_"

_DAY_S: Final = 86_400

# ------------------------------------------------------------------------------------------------- checks of one value


def _check_url(url: SecretStr) -> SecretStr:
    if (problem := url_problem(url.get_secret_value())) is not None:
        raise ValueError(problem)
    return url


def _check_secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < 16:
        raise ValueError("must have at least 16 characters; `openssl rand -hex 32` makes a good one")
    return secret


def _check_limits(limits: Mapping[str, str | ProviderSettings]) -> Mapping[str, str | ProviderSettings]:
    for name, entry in limits.items():
        check_name("limit", name)
        try:
            starts_of(entry)
        except InvalidInput as refused:
            raise ValueError(f"limit {name!r}: {refused}") from None
    return limits


def _check_starts(rate: str) -> str:
    parse_rate(rate)
    return rate


def _check_amount(amount: str) -> str:
    parse_amount(amount)
    return amount


def _check_base_path(path: str) -> str:
    parts = path.removeprefix("/").split("/")
    safe = all(part and part.isascii() and part.replace("-", "").replace("_", "").isalnum() for part in parts)
    if not (path.startswith("/") and safe):
        raise ValueError("must begin with / and have letters, digits, - and _ between its slashes, as /orc")
    return path


def _check_header(name: str) -> str:
    if not (name.isascii() and name.replace("-", "").isalnum()):
        raise ValueError("must be the name of a header, as X-Forwarded-User")
    return name


def _check_address(address: str) -> str:
    return str(ip_address(address))


def _check_health(address: str) -> str:
    parse_health_address(address)
    return address


def _check_payload_store(address: str) -> str:
    url = urlsplit(address)
    if not address:
        return address
    if url.username is not None or url.password is not None or url.query or url.fragment:
        raise ValueError("must be file:///path or s3://bucket/prefix; credentials have settings of their own")
    if url.scheme == "file" and not url.netloc and len(url.path) > 1 and ".." not in url.path.split("/"):
        return address
    if url.scheme == "s3" and url.netloc and ".." not in url.path.split("/"):
        return address
    raise ValueError("must be file:///path, s3://bucket/prefix, or empty")


def _check_groups(groups: Mapping[str, WorkerGroupSettings]) -> Mapping[str, WorkerGroupSettings]:
    for name in groups:
        # A name is part of a variable (`ORC_WORKERS__WRITERS__PROCESSES`) and the instance of a systemd unit.
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", name):
            raise ValueError(
                f"group {name!r}: a name is 1 to 64 lower-case letters, digits, . and -, and begins with a letter or "
                "digit"
            )
    return groups


def _check_targets(agents: tuple[str, ...]) -> tuple[str, ...]:
    for agent in agents:
        module, _, name = agent.partition(":")
        if not module or not name:
            raise ValueError(f"{agent!r} is not MODULE:AGENT, as in my_agents:agent")
    return agents


def _check_environment(variables: Mapping[str, str]) -> Mapping[str, str]:
    for name in variables:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is not the name of a variable")
    return variables


Seconds: TypeAlias = Annotated[float, Field(gt=0, le=100 * 365 * _DAY_S, allow_inf_nan=False)]
Retention: TypeAlias = Annotated[float, Field(ge=1, le=100 * 365 * _DAY_S, allow_inf_nan=False)]
"""Redis keeps keys for whole seconds; 0 would delete them at once."""
Count: TypeAlias = Annotated[int, Field(ge=1, le=2**31)]
Size: TypeAlias = Annotated[int, Field(ge=1, le=512 * 1024 * 1024)]  # Redis holds no longer strings
Bytes: TypeAlias = Annotated[int, Field(ge=1024, le=2**49)]

Health: TypeAlias = Annotated[
    str, BeforeValidator(lambda given: str(given) if type(given) is int else given), AfterValidator(_check_health)
]
"""Address of a health server; a TOML file may have a bare port as a number."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _LiveMark:
    """Marks a setting that a reload changes."""


Live: TypeAlias = Annotated[T, _LiveMark()]
"""Type of a setting that a reload changes. Its readers read it each time that they use it, and do not copy it."""

# ------------------------------------------------------------------------------------------------------------ the tree


class _Section(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )


class RedisSettings(_Section):
    """Connection to the server."""

    url: Annotated[SecretStr, AfterValidator(_check_url)] | None = Field(
        default=None,
        description="Address of the server: redis://, rediss:// or unix://, with user and password if needed; of "
        "sentinels and their group: redis+sentinel://host:port,host:port/group/0; of a cluster: "
        "redis+cluster://host:port,host:port. Without it, a running embedded server is used.",
        examples=["redis://localhost:6379/0"],
    )
    connect_timeout_s: Seconds = Field(default=5.0, description="Time-out of a connection attempt, in seconds.")
    command_timeout_s: Seconds = Field(default=5.0, description="Time-out of a command, in seconds.")
    allow_eviction: bool = Field(
        default=False,
        description="Start even if the server may evict keys when memory is short. Evicted keys are lost tasks.",
    )
    tls_ca: str | None = Field(
        default=None,
        description="File with the certificates of the authorities that sign that of Redis, in PEM. Not set: those of "
        "the system.",
        examples=["/etc/orchestrator/redis-ca.pem"],
    )
    tls_cert: str | None = Field(
        default=None,
        description="File with the certificate that programs show to Redis, in PEM. Not set: none.",
        examples=["/etc/orchestrator/client.pem"],
    )
    tls_key: str | None = Field(
        default=None,
        description="File with the private key of tls_cert, in PEM. Not set: it is in the file of tls_cert.",
        examples=["/etc/orchestrator/client.key"],
    )
    tls_verify: Verify = Field(
        default="full",
        description="What programs check of the certificate of Redis: full, ca (not the name of the host), or none. "
        "With none, others on the network can read and change everything.",
    )
    views: Literal["primary", "replica"] = Field(
        default="primary",
        description="Where lists, `orc status` and `orc keys report` are read. A replica spares the primary, and each "
        "view says how old it may be.",
    )

    @property
    def place(self) -> RedisUrl | None:
        """The parts of the URL, with what the settings of TLS add; None without a URL."""
        if self.url is None:
            return None
        parsed = parse_url(self.url.get_secret_value())
        return parsed.with_tls(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key, verify=self.tls_verify)

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        _ = self.place
        return self


class QueueSettings(_Section):
    """Limits and order of waiting tasks."""

    aging_s: Live[Seconds | None] = Field(
        default=None,
        description="Waiting time that raises a task by one priority level, in seconds. Not set: strict priorities.",
        examples=[3600.0],
    )
    durability: Live[Level] = Field(
        default="default",
        description="Durability of submits that name none: default, fsync (on the disk of Redis) or replicated (at a "
        "replica).",
    )
    durable_within_s: Annotated[Seconds, Field(le=3600)] = Field(
        default=5.0,
        description="Seconds that a submit waits for its durability; then it raises NotDurable, and the task exists.",
    )
    max_tasks: Live[Count] = Field(default=1_000_000, description="Maximum tasks in a queue; more are refused.")
    max_queue_bytes: Live[Bytes] = Field(
        default=2 * 1024**3,
        description="Maximum bytes of the tasks of a queue that wait, arguments included; more are refused.",
    )
    max_pool_bytes: Live[Bytes] = Field(
        default=8 * 1024**3, description="Maximum bytes of all tasks that wait; more are refused."
    )
    max_queues: Live[Count] = Field(
        default=10_000,
        description="Maximum queues (skills, and agents that tasks are addressed to) with ready tasks; a task for "
        "another queue is refused.",
    )
    max_schedules: Live[Count] = Field(default=10_000, description="Maximum schedules of the pool; more are refused.")
    max_wait_s: Live[Retention] = Field(
        default=14 * _DAY_S, description="Seconds after which a task that never started is dropped."
    )
    max_args_bytes: Live[Size] = Field(
        default=262_144, description="Maximum size of the arguments of a task, in bytes of JSON."
    )
    max_depth: Live[Annotated[Count, Field(le=512)]] = Field(
        default=64, description="Maximum nesting of lists and objects in the arguments."
    )
    max_tags: Live[Annotated[int, Field(ge=0, le=1024)]] = Field(default=64, description="Maximum tags of a task.")
    max_child_depth: Live[Annotated[int, Field(ge=0, le=1024)]] = Field(
        default=16, description="Maximum depth of child tasks."
    )


class ResultSettings(_Section):
    """Retention of ended tasks."""

    ttl_s: Live[Annotated[Seconds, Field(ge=300)]] = Field(
        default=3600,
        description="Retention of an ended task and its result, in seconds; at least a day with an idempotency key. "
        "At least 300.",
    )
    keep_arguments: Live[bool] = Field(
        default=False, description="Keep the arguments of succeeded tasks. Other ended tasks always keep theirs."
    )
    max_bytes: Live[Size] = Field(default=1_048_576, description="Maximum size of a result, in bytes of JSON.")
    dead_ttl_s: Live[Retention] = Field(default=14 * _DAY_S, description="Retention of a dead letter, in seconds.")
    max_events: Live[Annotated[int, Field(ge=100, le=20_000)]] = Field(
        default=10_000,
        description="Ended tasks that `orc events` and `orc tasks list` show at least; older ones are dropped.",
    )


class PayloadSettings(_Section):
    """The store of arguments and results that are too large for Redis."""

    store: Annotated[str, AfterValidator(_check_payload_store)] = Field(
        default="",
        description="Where large arguments and results are kept: file:///path, a folder that all programs of the pool "
        "see, or s3://bucket/prefix. Empty: no store; values above `queue.max_args_bytes` and `results.max_bytes` are "
        "refused.",
    )
    inline_bytes: Live[Annotated[int, Field(ge=4096, le=512 * 1024 * 1024)]] = Field(
        default=1_048_576,
        description="Size above which a value goes to the store, in bytes of JSON. What is above "
        "`queue.max_args_bytes` or `results.max_bytes` goes there in any case.",
    )
    max_bytes: Live[Annotated[int, Field(ge=4096, le=4 * 1024**3)]] = Field(
        default=64 * 1024 * 1024, description="Maximum size of a value in the store, in bytes of JSON."
    )
    compression: Literal["none", "zstd"] = Field(
        default="none",
        description="Compression of what is written to the store: none, or zstd, which needs redis-orchestrator[zstd] "
        "before Python 3.14 in all programs of the pool.",
    )
    endpoint: str = Field(
        default="",
        description="Address of an S3-compatible service, as http://minio:9000. Empty: that of the region, or of "
        "AWS_ENDPOINT_URL.",
    )
    region: str = Field(default="", description="Region of the bucket. Empty: AWS_REGION, else us-east-1.")
    access_key_id: SecretStr | None = Field(
        default=None,
        description="Access key of the bucket. Not set: the AWS variables or the role of the machine.",
        examples=["AKIAIOSFODNN7EXAMPLE"],
    )
    secret_access_key: SecretStr | None = Field(
        default=None, description="Secret of `payload.access_key_id`.", examples=["the secret of the access key"]
    )

    @model_validator(mode="after")
    def _both_keys(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together; set both or none")
        return self


class OutputSettings(_Section):
    """Progress and partial output of tasks."""

    max_chunk_bytes: Live[Annotated[Size, Field(le=1_048_576)]] = Field(
        default=65_536, description="Maximum size of a chunk of output, in bytes of JSON."
    )
    max_chunks: Live[Annotated[int, Field(ge=10, le=10_000)]] = Field(
        default=1000,
        description="Approximate number of output and progress entries kept per task; the oldest are dropped.",
    )


class WorkspaceSettings(_Section):
    """Limits of the workspace of a session."""

    ttl_s: Live[Annotated[Seconds, Field(ge=60)]] = Field(
        default=_DAY_S, description="Retention of a workspace after its last change, in seconds."
    )
    life_s: Live[Annotated[Seconds, Field(ge=60)]] = Field(
        default=7 * _DAY_S, description="Maximum age of a workspace after its first change, in seconds."
    )
    dedup_s: Live[Annotated[Seconds, Field(ge=10, le=_DAY_S)]] = Field(
        default=600.0, description="Seconds within which a change that is sent twice is told from a new one, at least."
    )
    max_dedup: Live[Annotated[Count, Field(le=1_000_000)]] = Field(
        default=20_000, description="Changes that one window of that memory holds; more in that time shorten it."
    )
    max_value_bytes: Live[Annotated[Size, Field(le=1_048_576)]] = Field(
        default=262_144, description="Maximum size of a value, in bytes of JSON."
    )
    max_items: Live[Count] = Field(
        default=100_000, description="Maximum number of paths, log entries, members and states in a workspace."
    )
    max_bytes: Live[Annotated[int, Field(ge=1, le=2**40)]] = Field(
        default=64 * 1024 * 1024,
        description="Maximum bytes of these; more are refused. Events may take as much again; the oldest are dropped.",
    )
    max_parts: Live[Annotated[int, Field(ge=1, le=500)]] = Field(
        default=500, description="Maximum number of logs, sets, scratches and inboxes in a workspace."
    )
    max_log: Live[Annotated[Count, Field(le=1_000_000)]] = Field(
        default=10_000, description="Entries kept per log; the oldest are dropped."
    )
    max_events: Live[Annotated[int, Field(ge=10, le=1_000_000)]] = Field(
        default=10_000, description="Approximate number of events kept per workspace; the oldest are dropped."
    )
    max_event_bytes: Live[Annotated[Size, Field(le=262_144)]] = Field(
        default=8192, description="Size of a value above which its events omit the value, in bytes."
    )
    json_projection: bool = Field(
        default=False,
        description="Also keep the paths as a JSON document; needs the RedisJSON module.",
    )

    @model_validator(mode="after")
    def _ttl_below_life(self) -> Self:
        if self.ttl_s > self.life_s:
            raise ValueError("ttl_s must not be greater than life_s")
        return self


class ChatSettings(_Section):
    """Chats: the messages of a session."""

    ttl_s: Live[Annotated[Seconds, Field(ge=60)]] = Field(
        default=_DAY_S, description="Retention of the messages of a chat after its last change, in seconds."
    )
    life_s: Live[Annotated[Seconds, Field(ge=60)]] = Field(
        default=7 * _DAY_S, description="Maximum age of the messages of a chat after its first change, in seconds."
    )
    summary_ttl_s: Live[Annotated[Seconds, Field(ge=60)]] = Field(
        default=30 * _DAY_S, description="Retention of the summary of a chat after its last change, in seconds."
    )
    max_messages: Live[Annotated[Count, Field(le=1_000_000)]] = Field(
        default=10_000, description="Messages kept per chat; the oldest are dropped."
    )
    max_bytes: Live[Annotated[int, Field(ge=1024, le=2**40)]] = Field(
        default=16 * 1024 * 1024, description="Bytes of messages kept per chat; the oldest are dropped."
    )
    max_message_bytes: Live[Annotated[Size, Field(le=1_048_576)]] = Field(
        default=262_144,
        description="Maximum bytes of a message as JSON with the ids of its tool calls; larger ones are refused.",
    )
    max_sources: Live[Annotated[int, Field(ge=1, le=500)]] = Field(
        default=100, description="Maximum number of chats in a session; more are refused."
    )
    tenant_max_bytes: Live[Annotated[int, Field(ge=0, le=2**50)]] = Field(
        default=0,
        description="Bytes of all chats of a tenant (third part of `prefix`) above which messages are refused; 0: no "
        "limit. Clients and workers count it every 5 s, so that it can be exceeded by what they add meanwhile.",
    )
    tenant_max_chats: Live[Annotated[int, Field(ge=0, le=2**40)]] = Field(
        default=0,
        description="Chats of a tenant above which new ones are refused; 0: no limit. Counted as `tenant_max_bytes`.",
    )

    @model_validator(mode="after")
    def _ttl_below_life(self) -> Self:
        if self.ttl_s > self.life_s:
            raise ValueError("ttl_s must not be greater than life_s")
        return self


class MemorySettings(_Section):
    """Memory of agents: short-term and intermediate records, and the way to long-term storage."""

    stm_ttl_s: Live[Annotated[Seconds, Field(ge=60)]] = Field(
        default=_DAY_S, description="Retention of a short-term record, in seconds."
    )
    im_ttl_s: Live[Annotated[Seconds, Field(ge=60)]] = Field(
        default=14 * _DAY_S, description="Retention of an intermediate record, in seconds."
    )
    outbox_ttl_s: Live[Annotated[Seconds, Field(ge=3600)]] = Field(
        default=30 * _DAY_S,
        description="Retention of records that wait for long-term storage, in seconds after the last one was added.",
    )
    simulation_ttl_s: Live[Annotated[Seconds, Field(ge=60)]] = Field(
        default=7 * _DAY_S, description="Retention of the indices of a simulation after its last change, in seconds."
    )
    max_stm_records: Live[Annotated[Count, Field(le=10_000_000)]] = Field(
        default=10_000, description="Short-term records of an agent; the oldest move to the intermediate tier."
    )
    max_im_records: Live[Annotated[Count, Field(le=10_000_000)]] = Field(
        default=100_000, description="Intermediate records of an agent; more are refused."
    )
    max_bytes: Live[Annotated[int, Field(ge=1024, le=2**40)]] = Field(
        default=256 * 1024 * 1024, description="Bytes of the records of an agent in both tiers; more are refused."
    )
    max_record_bytes: Live[Annotated[Size, Field(le=1_048_576)]] = Field(
        default=65_536, description="Maximum size of the content of a record, in bytes of JSON."
    )
    stm_age_s: Live[Annotated[Seconds, Field(ge=1)]] = Field(
        default=6 * 3600.0, description="Age at which `transition` moves a short-term record, in seconds."
    )
    keep_importance: Live[Annotated[float, Field(allow_inf_nan=False)]] = Field(
        default=0.0,
        description="Importance from which `transition` moves a record; it leaves less important ones to expire.",
    )
    cell_size: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=10.0, description="Width of a cell of the index by position, in units of the positions."
    )
    relative_states: Live[Annotated[int, Field(ge=1, le=10_000_000)]] = Field(
        default=20, description="States of an agent that `StateMemory` reaches by relative position."
    )
    vector_rung: Live[Literal["auto", "vectorset", "lsh", "exact"]] = Field(
        default="auto",
        description="How `similar` searches: `vectorset` uses vector sets (Redis 8.0), `lsh` buckets, `exact` compares "
        "all vectors. `auto` uses vector sets if the server has them, else compares up to 20,000 vectors, and uses "
        "buckets for more.",
    )
    vector_cache_bytes: Live[Annotated[int, Field(ge=0, le=2**40)]] = Field(
        default=64 * 1024 * 1024,
        description="Bytes of vectors that a process keeps to compare them; those of more are read for each search.",
    )
    vector_delete: Live[Literal["vrem", "mark"]] = Field(
        default="vrem",
        description="How vectors leave a vector set: `vrem` removes them; `mark` hides them, and builds the set anew "
        "when a fifth of it is hidden, for servers whose VREM may crash (redis/redis#15424).",
    )


class WorkerSettings(_Section):
    """Worker processes and their heartbeat."""

    processes: Annotated[int, Field(ge=1, le=1024)] = Field(default=1, description="Worker processes per host.")
    drain_s: Live[Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)]] = Field(
        default=30.0, description="Seconds that running tasks may go on after SIGTERM before they are requeued."
    )
    grace_s: Live[Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)]] = Field(
        default=10.0,
        description="Seconds that a cancelled handler may take to stop; then its attempt ends without it.",
    )
    stuck_after_s: Seconds = Field(
        default=60.0, description="Seconds that the event loop may be blocked before its process counts as stuck."
    )
    heartbeat_s: Seconds = Field(
        default=5.0,
        description="Seconds between heartbeats; at most a third of an agent's lease.",
    )
    health: Health | None = Field(
        default=None,
        description="Address at which a worker host serves /livez, /readyz and /metrics: host:port, a port of the "
        "loopback address, or unix:/path. Not set: no server.",
        examples=["127.0.0.1:9472"],
    )


class WorkerGroupSettings(_Section):
    """A group of worker processes, which `orc worker run --group NAME` runs."""

    agents: Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_check_targets)] = Field(
        description="Agents of the group, as MODULE:AGENT."
    )
    processes: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Worker processes of the group. Not set: `worker.processes`."
    )
    environment: Annotated[Mapping[str, str], AfterValidator(_check_environment)] = Field(
        default={},
        description="Environment variables of the processes of the group. Every child process inherits them and "
        "`orc config show` prints them, so that secrets do not belong here.",
    )


class SupervisorSettings(_Section):
    """Loops of the supervisor."""

    sweep_s: Live[Seconds] = Field(
        default=5.0, description="Seconds between full passes, which make up for lost notifications."
    )
    leader_lease_s: Seconds = Field(
        default=10.0, description="Seconds after which another supervisor replaces a silent leader."
    )
    batch: Live[Annotated[int, Field(ge=1, le=500)]] = Field(default=100, description="Maximum tasks per script call.")
    health: Health | None = Field(
        default=None,
        description="Address at which a supervisor serves /livez, /readyz and /metrics: host:port, a port of the "
        "loopback address, or unix:/path. Not set: no server.",
        examples=["127.0.0.1:9471"],
    )


class RetrySettings(_Section):
    """Default delays between the attempts of a task."""

    base_s: Live[Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)]] = Field(
        default=1.0, description="Maximum of the first delay, in seconds; it doubles with every failure."
    )
    cap_s: Live[Seconds] = Field(default=300.0, description="Maximum delay, in seconds.")

    @model_validator(mode="after")
    def _base_below_cap(self) -> Self:
        if self.base_s > self.cap_s:
            raise ValueError("base_s must not be greater than cap_s")
        return self


class ControlSettings(_Section):
    """Operator commands."""

    secret: Live[Annotated[SecretStr, AfterValidator(_check_secret)] | None] = Field(
        default=None,
        description="Secret that signs commands, at least 16 characters. Without it, every client of Redis may give "
        "commands.",
        examples=["the output of: openssl rand -hex 32"],
    )
    previous_secret: Live[Annotated[SecretStr, AfterValidator(_check_secret)] | None] = Field(
        default=None,
        description="Another secret that is accepted too, while `control.secret` is being changed.",
        examples=["the secret before this one"],
    )
    valid_s: Live[Annotated[Seconds, Field(le=_DAY_S)]] = Field(
        default=60.0, description="Seconds after which a command that has not arrived is refused."
    )
    per_minute: Live[Count] = Field(default=600, description="Commands accepted per minute. A stop is always accepted.")

    @model_validator(mode="after")
    def _previous_needs_present(self) -> Self:
        if self.previous_secret is not None and self.secret is None:
            raise ValueError("previous_secret is accepted beside secret; set that too")
        return self


class LoggingSettings(_Section):
    """Level and format of the log."""

    level: Live[Literal["debug", "info", "warning", "error"]] = Field(
        default="info", description="Lowest level to write: debug, info, warning or error."
    )
    format: Literal["auto", "console", "json", "journal"] = Field(
        default="auto",
        description="console, json, journal, or auto: journal under systemd, console on a terminal, else JSON lines.",
    )


class DashboardSettings(_Section):
    """The dashboard and its API, which `orc web` serves."""

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen at. Another one than that of this machine alone needs a user or a token.",
    )
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(
        default=8470, description="Port to listen at; 0 takes a free one."
    )
    base_path: Annotated[str, AfterValidator(_check_base_path)] | None = Field(
        default=None, description="Path under which a proxy serves the dashboard. Not set: /.", examples=["/orc"]
    )
    hosts: tuple[str, ...] = Field(
        default=(), description="Host names, without port, that requests may ask for besides `host` and localhost."
    )
    https: bool = Field(
        default=False, description="Browsers reach the dashboard over TLS, by a proxy. Cookies are then Secure."
    )
    agents: tuple[str, ...] = Field(
        default=(),
        description="Agents as MODULE:AGENT whose `display` functions show arguments and results to operators.",
    )
    read_only: bool = Field(default=False, description="Refuse every command, and show no buttons.")
    proxy_header: Annotated[str, AfterValidator(_check_header)] | None = Field(
        default=None,
        description="Header in which a proxy that logs users in names them; they must be users of `orc web user`.",
        examples=["X-Forwarded-User"],
    )
    proxies: tuple[Annotated[str, AfterValidator(_check_address)], ...] = Field(
        default=(), description="Addresses of the proxies whose `proxy_header` is trusted; from others it is ignored."
    )


class TracingSettings(_Section):
    """Spans of OpenTelemetry."""

    relation: Literal["link", "parent"] = Field(
        default="link",
        description="How the span of an attempt refers to the span of its submit: link (a trace of its own) or parent.",
    )


class ProviderSettings(_Section):
    """Limits of an outside service that handlers call with `ctx.provider`; at least one of them."""

    starts: Annotated[str, AfterValidator(_check_starts)] | None = Field(
        default=None, description='Starts of tasks of the agents that have the limit, as "10/min". Not set: any number.'
    )
    requests: Annotated[str, AfterValidator(_check_amount)] | None = Field(
        default=None, description='Calls that begin in any window, as "500/min".'
    )
    tokens: Annotated[str, AfterValidator(_check_amount)] | None = Field(
        default=None, description='Tokens that calls reserve and use in any window, as "200k/min".'
    )
    at_once: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="Calls that run at a time."
    )
    shared: bool = Field(
        default=False,
        description="Whether all pools of the prefix share `requests`, `tokens` and `at_once`, and what the provider "
        "tells; `starts` is that of each pool.",
    )

    @model_validator(mode="after")
    def _limits_something(self) -> ProviderSettings:
        if all(limit is None for limit in (self.starts, self.requests, self.tokens, self.at_once)):
            raise ValueError("give at least one of starts, requests, tokens and at_once")
        return self


def starts_of(entry: str | ProviderSettings) -> Rate:
    """Return the rate of starts of an entry of `limits`; a provider may limit none.

    Raises:
        InvalidInput: it cannot be read.
    """
    rate = entry if isinstance(entry, str) else entry.starts
    return ANY_STARTS if rate is None else parse_rate(rate)


LimitEntry: TypeAlias = Annotated[
    Annotated[str, Tag("rate")] | Annotated[ProviderSettings, Tag("provider")],
    Discriminator(lambda given: "provider" if isinstance(given, Mapping | ProviderSettings) else "rate"),
]


class Settings(BaseSettings):
    """All settings. `load_settings` reads them from the usual sources; `Settings()` holds the defaults."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )

    prefix: Annotated[str, AfterValidator(check_prefix)] = Field(
        default="orc:dev:default",
        description="First part of every key: app:env:tenant. Different prefixes are isolated from each other.",
    )
    pool: Annotated[str, AfterValidator(check_pool)] = Field(
        default="default", description="Name of the pool, which has its own queues, agents and limits."
    )
    limits: Live[Annotated[Mapping[str, LimitEntry], AfterValidator(_check_limits)]] = Field(
        default={},
        description='Named limits that agents share, as "10/s", "10/min", "10/h" or "10/d"; of a provider a table with '
        "`requests`, `tokens` and `at_once`.",
        examples=[{"model:large": "60/min"}],
    )
    redis: RedisSettings = RedisSettings()
    queue: QueueSettings = QueueSettings()
    results: ResultSettings = ResultSettings()
    payload: PayloadSettings = PayloadSettings()
    output: OutputSettings = OutputSettings()
    workspace: WorkspaceSettings = WorkspaceSettings()
    chat: ChatSettings = ChatSettings()
    memory: MemorySettings = MemorySettings()
    worker: WorkerSettings = WorkerSettings()
    workers: Annotated[Mapping[str, WorkerGroupSettings], AfterValidator(_check_groups)] = Field(
        default={},
        description="Worker groups by name, which `orc worker run --group NAME` runs: their agents (MODULE:AGENT), the "
        "number of worker processes (default: `worker.processes`), and environment variables. Secrets do not belong "
        "in `environment`: every child process inherits them and `orc config show` prints them.",
        examples=[
            {"writers": {"agents": ["my_agents:agent"], "processes": 4, "environment": {"MODEL_DIR": "/srv/models"}}}
        ],
    )
    supervisor: SupervisorSettings = SupervisorSettings()
    retry: RetrySettings = RetrySettings()
    control: ControlSettings = ControlSettings()
    logging: LoggingSettings = LoggingSettings()
    dashboard: DashboardSettings = DashboardSettings()
    tracing: TracingSettings = TracingSettings()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must never be printed: passwords of Redis, raw and decoded, and the secrets of settings."""
        place = self.redis.place
        passwords = place.passwords if place is not None else ()
        declared = (
            self.control.secret,
            self.control.previous_secret,
            self.payload.access_key_id,
            self.payload.secret_access_key,
        )
        keys = [key.get_secret_value() for key in declared if key]
        return tuple({*passwords, *keys})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is the library's, here and below
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Accept only passed values; `load_settings` reads files and the environment."""
        return (init_settings,)


# ---------------------------------------------------------------------------------------------------- names of settings


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting of the model.

    Attributes:
        path: the sections and the name.
        examples: valid values, at least one for a setting without a default.
        secret: its value is never shown.
        open: a table whose names the user chooses (`limits`, `workers`).
        section: what each entry of such a table is (`workers`); None for plain values.
        live: a reload changes it; without that it needs a restart.
    """

    path: tuple[str, ...]
    default: object
    description: str
    examples: Sequence[Any]
    secret: bool
    open: bool
    section: type[BaseModel] | None
    live: bool

    @property
    def name(self) -> str:
        """The dotted name, as in `redis.url`."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable, as in `ORC_REDIS__URL`."""
        return ENV_PREFIX + "__".join(self.path).upper()

    def of(self, settings: Settings) -> Any:
        """Return the value in a tree of settings."""
        value: Any = settings
        for part in self.path:
            value = getattr(value, part)
        return value


@cache
def leaves() -> tuple[Leaf, ...]:
    """List every setting of the model: top-level ones first, then section by section."""
    return tuple(sorted(_leaves_of(Settings, ()), key=lambda leaf: len(leaf.path)))


def settings_schema() -> dict[str, Any]:
    """Return the JSON schema of a settings file."""
    schema = Settings.model_json_schema()
    schema["title"] = "Settings"
    return schema


def _leaves_of(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[Leaf]:
    for name, field in model.model_fields.items():
        here = (*path, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _leaves_of(field.annotation, here)
        else:
            annotation = repr(field.annotation)
            yield Leaf(
                path=here,
                default=field.default,
                description=field.description or "",
                examples=field.examples or (),
                secret="SecretStr" in annotation,
                open="Mapping" in annotation,
                section=_section_of(field.annotation),
                live=any(isinstance(mark, _LiveMark) for mark in field.metadata),
            )


def _section_of(annotation: object) -> type[BaseModel] | None:
    """Return the model of the entries of a table of sections."""
    entry = get_args(annotation)[-1:]
    return entry[0] if entry and isinstance(entry[0], type) and issubclass(entry[0], BaseModel) else None

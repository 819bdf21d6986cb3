"""Names of all spans and attributes. docs/reference/tracing.md lists them; a test compares the two.

The names of the messaging and GenAI conventions are not final, so they are written in this module alone.
"""

from __future__ import annotations

from typing import Final

# ----------------------------------------------------------------------------------------------------------- spans

SUBMIT: Final = "submit"
RUN: Final = "run"
WAIT: Final = "wait"
LOCK: Final = "lock"
SCRIPT: Final = "script"
ASK: Final = "ask"

NAME_CHARS: Final = 128
"""A skill has a name of at most this length; the span of a submit that is refused for its name is cut to it."""

# ------------------------------------------------------------------------------------------------------ conventions

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
ENVELOPE_SIZE: Final = "messaging.message.envelope.size"
BATCH_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"

GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_AGENT: Final = "gen_ai.agent.name"
GEN_AI_CONVERSATION: Final = "gen_ai.conversation.id"

DB_SYSTEM: Final = "db.system.name"
DB_OPERATION: Final = "db.operation.name"
DB_PROCEDURE: Final = "db.stored_procedure.name"

ERROR_TYPE: Final = "error.type"

# ----------------------------------------------------------------------------------------------------------- our own

POOL: Final = "orc.pool"
SKILL: Final = "orc.skill"
ADDRESSED: Final = "orc.agent"
PARENT: Final = "orc.task.parent"
ATTEMPT: Final = "orc.task.attempt"
DEATHS: Final = "orc.task.deaths"
OUTCOME: Final = "orc.task.outcome"
SCHEDULE: Final = "orc.schedule"
LOCK_KEY: Final = "orc.lock.key"
LOCK_ACQUIRED: Final = "orc.lock.acquired"
LOCK_WAITED: Final = "orc.lock.waited_ms"
ASK_ANSWERED: Final = "orc.ask.answered"
LINK: Final = "orc.link"

# ------------------------------------------------------------------------------------------------------------ values

REDIS: Final = "redis"
SEND: Final = "send"
PROCESS: Final = "process"
INVOKE_AGENT: Final = "invoke_agent"
EVALSHA: Final = "EVALSHA"
PRODUCER_LINK: Final = "producer"
PREVIOUS_LINK: Final = "previous_attempt"
ATTEMPT_LINK: Final = "attempt"
LOST: Final = "lost"
"""Outcome of an attempt whose verdict is not stored, because another worker has its task."""

"""Declares every log event of the product: its name, level, keys and meaning. `reference/events.md` is made from it.

A call writes the level of its event and all of its keys; a key with `?` may be missing.
`tests/contract/test_log_events.py` compares the calls with this page. A new event is declared here first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
KeyType: TypeAlias = Literal["text", "number", "flag", "list", "table"]


@dataclass(frozen=True, slots=True)
class LogKey:
    """A key. It means the same in every event, and a duration or a time ends with its unit (`_s`, `_ms`)."""

    type: KeyType
    meaning: str


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An event: what it tells, and what to do; `up_level` is its level under `orc up`, where that differs."""

    name: str
    level: Level
    keys: tuple[str, ...]
    text: str
    up_level: Level | None = None

    @property
    def required(self) -> set[str]:
        """The keys that every call writes."""
        return {key for key in self.keys if not key.endswith("?")}

    @property
    def allowed(self) -> set[str]:
        """The keys that a call may write."""
        return {key.removesuffix("?") for key in self.keys}


@dataclass(frozen=True, slots=True)
class EventSection:
    """The events of one kind of program."""

    title: str
    text: str
    events: tuple[LogEvent, ...]


RESERVED: Final = ("timestamp", "level", "logger", "event", "exception", "stack")
"""Keys of every line, which no event may write itself."""

LOG_KEYS: Final[dict[str, LogKey]] = {
    "action": LogKey("text", "what a program did to tasks or schedules: `cancel`, `retry`, `delete`, `pause`"),
    "actor": LogKey("text", "who gave a command"),
    "address": LogKey("text", "host and port of a Redis server"),
    "agent": LogKey("text", "name of an agent"),
    "agents": LogKey("list", "names of agents"),
    "at_ms": LogKey("number", "the time for which a schedule fired, in ms since 1970"),
    "attempt": LogKey("number", "number of an attempt of `task`, from 1"),
    "away_s": LogKey("number", "time for which Redis did not answer"),
    "before": LogKey("text", "host and port of the server that was used before"),
    "blocked_s": LogKey("number", "time for which code has blocked an event loop"),
    "cause": LogKey("text", "what ended a worker or an attempt"),
    "changed": LogKey("list", "settings that a reload applied"),
    "code": LogKey("text", "code of a damage; [Repair](../guides/repair.md)"),
    "command": LogKey("text", "id of a command"),
    "count": LogKey("number", "number of what the event is about"),
    "dead_workers": LogKey("list", "ids of workers that died"),
    "desired": LogKey("list", "entries of the desired state"),
    "done": LogKey("text", "what a repair did"),
    "events": LogKey("table", "number of lines by event"),
    "entry": LogKey("text", "id of an entry of a stream"),
    "error": LogKey("text", "text of the exception or refusal that the event is about"),
    "examples": LogKey("list", "some of the tasks or agents concerned"),
    "expired": LogKey("number", "tasks that were too late to start"),
    "exporters": LogKey("list", "exporters of spans, as OTEL_TRACES_EXPORTER names them"),
    "files": LogKey("number", "number of files"),
    "floor": LogKey("number", "the lowest format that the pool admits"),
    "format": LogKey("number", "format of a program"),
    "found": LogKey("text", "what a damage is"),
    "generation": LogKey("number", "number of the settings in use; each change raises it"),
    "hash_slot": LogKey("number", "hash slot of a Redis Cluster"),
    "immediately": LogKey("flag", "whether running tasks are given back at once"),
    "deaths": LogKey("number", "attempts of `task` whose worker died"),
    "deleted": LogKey("number", "number of objects that were deleted"),
    "keys": LogKey("number", "number of Redis keys"),
    "objects": LogKey("number", "number of objects in the payload store"),
    "join": LogKey("number", "number of a join in its task, from 1"),
    "kind": LogKey("text", "kind of a command"),
    "listen": LogKey("text", "address of a health server"),
    "lock": LogKey("text", "name of a lock"),
    "locks": LogKey("number", "number of locks"),
    "loop": LogKey("text", "name of a loop"),
    "missed": LogKey("number", "fire times that a schedule skipped"),
    "module": LogKey("text", "name of a Python module"),
    "names": LogKey("list", "queues, or loops of the supervisor"),
    "needs_restart": LogKey("list", "settings that changed and need a restart"),
    "new_level": LogKey("text", "level of the log from now on"),
    "outcomes": LogKey("table", "number of tasks by outcome"),
    "part": LogKey("text", "`args` or `result`"),
    "path": LogKey("text", "path of a file"),
    "pid": LogKey("number", "process id"),
    "places": LogKey("number", "number of queues, inboxes and sets that refer to tasks"),
    "pool": LogKey("text", "name of a pool; every event about one of several pools of a process has it"),
    "policy": LogKey("text", "`maxmemory-policy` of Redis"),
    "problem": LogKey("text", "what is wrong with a setting or a command, as a sentence"),
    "problems": LogKey("list", "what is wrong with the settings, a sentence each"),
    "question": LogKey("number", "number of a question of `task`"),
    "queue": LogKey("text", "name of a queue"),
    "queues": LogKey("list", "names of queues"),
    "decided_by": LogKey("text", "the person who decided, `check` or `policy`"),
    "decision": LogKey("text", "`ask`, `done`, `not done`, `retry`, `fail` or `invalid` (an answer that is none)"),
    "budget": LogKey("text", "name of a budget"),
    "effect": LogKey("text", "name of an effect of `task`"),
    "reason": LogKey("text", "why an attempt failed: the exception on one line"),
    "ran_ms": LogKey("number", "how long a handler ran"),
    "retry_in_ms": LogKey("number", "time until the next try"),
    "running": LogKey("number", "number of running tasks"),
    "schedule": LogKey("text", "name of a schedule"),
    "scope": LogKey("text", "owner of a memory, as `agent:ada`; what a stop held: all, or an agent, session or skill"),
    "scopes": LogKey("number", "number of sessions, memories or agents whose state was changed"),
    "service": LogKey("text", "name of the service in the spans of a program"),
    "session": LogKey("text", "id of a session"),
    "signal": LogKey("text", "name of a signal"),
    "silent_s": LogKey("number", "time since an event loop, or one of our loops, turned"),
    "since_ms": LogKey("number", "Unix time at which a write was confirmed that Redis has lost, in ms"),
    "skill": LogKey("text", "name of a skill; empty if the task could not be read"),
    "skipped": LogKey("number", "number of files that were not read"),
    "source": LogKey("text", "name of a logger"),
    "step_s": LogKey("number", "by how much a clock moved; below 0: back"),
    "submits": LogKey("number", "number of submitted tasks"),
    "supervisor": LogKey("text", "id of a supervisor"),
    "provider": LogKey("text", "name of a limit of an outside service"),
    "state": LogKey("text", "`throttled`, `quota` or `broken`"),
    "until_ms": LogKey("number", "Unix time at which a state of a provider ends, in ms; 0: an operator ends it"),
    "task": LogKey("text", "id of a task"),
    "task_ids": LogKey("list", "ids of tasks"),
    "tasks": LogKey("number", "number of tasks"),
    "unfinished": LogKey("number", "entries without a stored verdict"),
    "upkeep": LogKey("table", "number of changes by step of the upkeep"),
    "verdict": LogKey("text", "what a worker wanted to store"),
    "waited_s": LogKey("number", "time that a program waited before it gave up"),
    "where": LogKey("text", "file and line of an agent's code; below the working directory relative to it"),
    "worker": LogKey("text", "id of a worker; every event of a worker process has it"),
    "workers": LogKey("number", "number of workers"),
    "workers_left": LogKey("number", "number of the other workers of a host"),
}

SECTIONS: Final = (
    EventSection(
        "Every program",
        "",
        (
            LogEvent(
                "stored_data_damaged",
                "warning",
                ("count", "error"),
                "Some of several stored values cannot be read and are left out; `error` is about the first one. Look "
                "for damage with `orc keys check`.",
            ),
            LogEvent(
                "health_request_failed",
                "error",
                ("error",),
                "The health server failed to answer a request; the traceback follows. The process goes on. Report it.",
            ),
            LogEvent(
                "health_server_started",
                "info",
                ("listen",),
                "The process serves its health and its metrics. No action.",
            ),
            LogEvent(
                "health_server_unavailable",
                "warning",
                ("error", "listen"),
                "The process could not listen at the address of `supervisor.health` or `worker.health`. It goes on, "
                "tries again every 10 s, and logs this once. Look for another process at that address.",
            ),
            LogEvent(
                "log_lines_dropped",
                "warning",
                ("count",),
                "The reader of the log did not read, or its disk was full, so `count` lines were lost before this "
                "one. Look at the program that reads standard error.",
            ),
            LogEvent(
                "log_lines_left_out",
                "warning",
                ("count", "events"),
                "The process wrote 100 lines of an event in a second, which are as many as it may, and left out "
                "`count`; `events` counts them by event. Look at the lines before this one: a failure repeats.",
            ),
            LogEvent(
                "log_record_failed",
                "error",
                ("error", "source"),
                "A line of the logger `source` could not be written, because a value in it raised `error`. Report it "
                "if that is a logger of this program.",
            ),
            LogEvent(
                "loop_silent",
                "error",
                ("loop", "silent_s"),
                "A loop of a supervisor or a worker, such as the assigner or the fetcher of an agent, has not turned "
                "for `silent_s` seconds, although the event loop runs. Under systemd the watchdog ends the supervisor. "
                "If it lasts another `worker.stuck_after_s` in a worker, its host ends it and starts a new one. Report "
                "it, with the stacks that the worker prints.",
            ),
            LogEvent(
                "notify_failed",
                "warning",
                ("error",),
                "The program could not send its state to systemd. It goes on and tries again; systemd ends a program "
                "that sends it nothing. Check that nothing hides the path in the variable NOTIFY_SOCKET from the "
                "service.",
            ),
            LogEvent(
                "redis_back",
                "info",
                ("address", "away_s"),
                "Redis answers this process again, `away_s` seconds after `redis_lost`. No action.",
            ),
            LogEvent(
                "redis_lost",
                "warning",
                ("address", "error"),
                "Redis has closed a connection of this process, or does not answer it. The process tries again until "
                "it does, and writes `redis_back` then. Until 5 s after that, it writes the failures of its loops at "
                "debug. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "settings_applied",
                "info",
                ("generation",),
                "The worker uses the settings that its host has reloaded. No action.",
            ),
            LogEvent(
                "settings_reload_refused",
                "error",
                ("generation", "problems"),
                "The process got SIGHUP, and the new settings are invalid. It goes on with the old ones. Correct the "
                "lines that `problems` names, then send SIGHUP again; `orc config validate` checks the settings first.",
            ),
            LogEvent(
                "settings_reloaded",
                "info",
                ("changed", "generation", "needs_restart"),
                "The process got SIGHUP and read its settings again. `changed` lists what it applied, `needs_restart` "
                "what it will use after a restart. `generation` counts the changes; it is 1 at the start. No action.",
            ),
            LogEvent(
                "spans_lost",
                "warning",
                ("waited_s",),
                "The program ended before its last spans were exported, because the collector did not take them within "
                "`waited_s` seconds. Check that the collector is reachable.",
            ),
            LogEvent(
                "tracing_started",
                "info",
                ("exporters", "service"),
                "The program exports spans, because the OTEL variables of its environment ask for it. No action.",
            ),
            LogEvent(
                "tracing_unavailable",
                "warning",
                ("error",),
                "The OTEL variables of the environment ask for spans, but a part is missing, or the exporter refused "
                "its configuration. The program works without spans. Install what `error` names, or unset them.",
            ),
            LogEvent(
                "slot_moved",
                "info",
                ("address", "hash_slot"),
                "A node of a Redis Cluster answered that the hash slot is at another node. The program goes on there."
                " No action; `orc doctor` tells whether to name another node in `redis.url`.",
            ),
            LogEvent(
                "slots_left",
                "info",
                ("address",),
                "Other nodes of the Redis Cluster have all slots of this one, for example after its replica was "
                "promoted. The program closes its connections to it and goes on there. No action.",
            ),
            LogEvent(
                "slot_map_unknown",
                "warning",
                ("error",),
                "No node of the Redis Cluster answered which node has which hash slots, or the user may not ask. The "
                "program uses the last answer and asks again. Check the nodes in `redis.url`, and allow "
                "`+cluster|slots`.",
            ),
            LogEvent(
                "master_changed",
                "info",
                ("address", "before"),
                "A sentinel named another master, or has chosen the replica that it makes the master now. The program "
                "closes its connections to the old one and goes on at `address`. No action.",
            ),
        ),
    ),
    EventSection(
        "Worker host",
        "The parent process of the workers writes these.",
        (
            LogEvent(
                "abandon_exception",
                "error",
                ("error", "pid"),
                "The process that abandons the entries of dead workers ended with an exception; the traceback "
                "follows. The host starts another one. Report it.",
            ),
            LogEvent(
                "entries_abandon_failed",
                "warning",
                ("dead_workers", "error"),
                "Redis did not take the entries of dead workers back. The host asks again every second. Check that "
                "Redis is reachable: `orc doctor`. Without the host, other workers adopt the entries when the lease "
                "ends.",
            ),
            LogEvent(
                "entries_abandoned",
                "info",
                ("count", "worker"),
                "The host requeued the `count` entries of a dead worker. No action.",
            ),
            LogEvent(
                "health_process_ended",
                "error",
                ("pid",),
                "The process that serves the health of the host ended. The host starts another one, later each "
                "time; the workers go on. Look at the lines before it.",
            ),
            LogEvent(
                "health_process_failed",
                "error",
                ("error", "pid"),
                "The process that serves the health of the host ends with an exception; the traceback follows. "
                "Report it.",
            ),
            LogEvent(
                "host_pool_ended",
                "error",
                ("cause", "pool"),
                "The workers of one of several pools cannot start, because of an agent or a setting. The host ends "
                "them and starts no others; those of its other pools go on. Look at the lines before it, then restart "
                "the host.",
            ),
            LogEvent(
                "host_stop_requested",
                "info",
                ("immediately", "signal", "workers"),
                "The host got a signal and stops its workers. `immediately` is true for a second signal: the workers "
                "requeue their running tasks now. No action.",
            ),
            LogEvent(
                "worker_died",
                "error",
                ("cause", "pid", "worker"),
                "A worker process ended unexpectedly. `cause` names the signal, the exit status or a stuck event "
                "loop. The host requeues its tasks and starts a new worker, later each time. Look at the lines before"
                " it; [dead letters](../guides/dead-letters.md) name tasks that do it again and again.",
            ),
            LogEvent(
                "worker_exception",
                "error",
                ("error", "pid"),
                "A worker process ended with an exception outside its handlers; the traceback follows. Report it.",
            ),
            LogEvent(
                "worker_shutdown_timed_out",
                "error",
                ("pid", "worker"),
                "A worker lived on after its time to drain. The host kills it; other workers take over its tasks. "
                "Raise `worker.drain_s`, or make the handlers end when they are cancelled.",
            ),
            LogEvent(
                "worker_stopped_by_operator",
                "info",
                ("pid", "worker", "workers_left"),
                "A worker ended because an operator stopped it. The host starts no replacement; `workers_left` counts"
                " its other workers. No action.",
            ),
            LogEvent(
                "worker_stuck",
                "error",
                ("pid", "worker"),
                "The event loop of a worker did not run for longer than `worker.stuck_after_s`, and the process "
                "did not end at the first signal of the host. The host kills it. Look for a process that is frozen.",
            ),
        ),
    ),
    EventSection(
        "Worker",
        "Each worker process writes these.",
        (
            LogEvent(
                "attempt_failed",
                "warning",
                ("agent", "attempt", "reason", "retry_in_ms", "skill", "task", "where"),
                "A handler raised an exception. The task runs again after `retry_in_ms`. Look at `reason` and at the "
                "line `where`. The traceback follows, unless the attempt before failed in the same lines of code.",
            ),
            LogEvent(
                "result_not_stored",
                "warning",
                ("agent", "error", "task"),
                "The payload store did not take a result. The worker repeats the write for five minutes; then the "
                "attempt fails and the task runs again. Look at `error`, and run `orc doctor`.",
            ),
            LogEvent(
                "attempt_fenced",
                "warning",
                ("agent", "attempt", "cause", "task"),
                "A newer attempt, or another owner of its lock, replaced the attempt. Redis stores no verdict of it. "
                "`cause` is `task_lost` or `lock_lost`. *Often*: as `lease_lost`.",
            ),
            LogEvent(
                "command_listener_disconnected",
                "warning",
                ("error", "retry_in_ms"),
                "The worker lost the connection on which it reads commands and cancels. It reads the desired state "
                "and connects again after `retry_in_ms`. *Often*: look at the network.",
            ),
            LogEvent(
                "command_count_forged",
                "warning",
                (),
                "Unsigned commands, or a program that wrote the count itself, had used up the commands of this minute "
                "(`control.per_minute`). The supervisor corrected the count. Look at who may write to Redis.",
            ),
            LogEvent(
                "command_received",
                "info",
                ("actor?", "command", "kind"),
                "The process received a command of an operator. No action.",
            ),
            LogEvent(
                "commands_refused",
                "warning",
                ("count", "entry", "problem"),
                "The supervisor or a worker refused `count` entries of the control stream, such as entries with a "
                "wrong signature. `entry` and `problem` belong to the first of them. Find the program that writes "
                "them: `orc control list --refused`.",
            ),
            LogEvent(
                "deregister_failed",
                "warning",
                ("error",),
                "The worker could not deregister. The supervisor forgets it after four heartbeats. Check that Redis "
                "is reachable: `orc doctor`.",
            ),
            LogEvent(
                "descriptions_refused",
                "debug",
                ("error",),
                "Redis did not store what the worker's skills take and return. The worker tries again after a minute."
                " No action.",
            ),
            LogEvent(
                "drain_announcement_failed",
                "warning",
                ("error",),
                "The worker could not tell the registry that it drains. It drains all the same. Check that Redis is "
                "reachable: `orc doctor`.",
            ),
            LogEvent(
                "entries_adopted",
                "info",
                ("agent", "count"),
                "The worker took `count` entries whose lease had ended, or that a lost read had taken. *Often*: look "
                "for workers that die or lose their connection.",
            ),
            LogEvent(
                "entry_unreadable",
                "warning",
                ("agent", "entry"),
                "The inbox holds an entry that no script wrote. The worker skips it, and its next look removes it. "
                "Find the program that writes to the key.",
            ),
            LogEvent(
                "event_loop_blocked",
                "warning",
                ("agent?", "blocked_s", "skill?", "task?", "where"),
                "Code has blocked the event loop for a second, at the line `where`; the stack follows. No other task "
                "of the worker goes on meanwhile. The worker writes this while the code blocks, and once a minute for "
                "each line. Await there, or make the handler a `def` or `process=True`. `orc doctor` shows it for an "
                "hour.",
            ),
            LogEvent(
                "event_loop_unblocked",
                "info",
                ("blocked_s", "where"),
                "The event loop runs again, after `blocked_s` seconds in the code of `where`. See "
                "`event_loop_blocked`.",
            ),
            LogEvent(
                "event_loop_stuck",
                "error",
                ("silent_s",),
                "The event loop has not run for `silent_s` seconds, which is longer than `worker.stuck_after_s`. The "
                "worker no longer renews its leases, and its host ends it. Look for a handler that blocks: use "
                "`def` or `process=True`.",
            ),
            LogEvent(
                "fetch_failed",
                "warning",
                ("agent", "error"),
                "The worker could not read the inbox or adopt entries. It tries again with growing pauses. Check that"
                " Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "finish_failed",
                "error",
                ("count", "error"),
                "Redis refused `count` verdicts. The worker keeps them and tries each alone. Look at `error`; the "
                "tasks stay assigned until then.",
            ),
            LogEvent(
                "finish_rejected",
                "warning",
                ("agent", "attempt", "task", "verdict"),
                "Redis refused a verdict because another attempt owns the task. Nothing was changed. *Often*: as "
                "`lease_lost`.",
            ),
            LogEvent(
                "fork_server_ended",
                "warning",
                ("error",),
                "The process ended that forks the processes of `process=True` handlers, and each call that ran in them "
                "failed as one attempt. The worker starts another one; after three in a row each process is a new "
                "program, which starts slower. *Often*: the system ran out of memory.",
            ),
            LogEvent(
                "handler_abandoned",
                "error",
                ("agent", "attempt", "task"),
                "A handler did not end within `worker.grace_s` after it was cancelled. The attempt has ended without "
                "it, and the code still runs in the process. Make the handler end; restart the worker if many are "
                "left.",
            ),
            LogEvent(
                "handler_continued_after_asking",
                "warning",
                ("agent", "attempt", "task"),
                "A handler continued after it had asked a person. The worker ignores what it did after that. Let "
                "`Asked` pass through `except` blocks.",
            ),
            LogEvent(
                "handler_process_started",
                "debug",
                ("pid",),
                "The worker started a process for `process=True` handlers. No action.",
            ),
            LogEvent(
                "handlers_not_forked",
                "warning",
                ("error", "module"),
                "The worker does not fork the processes of the `process=True` handlers of `module`, because a fork "
                "is not safe after its import, as `error` says. Each process is a new program, which takes more time "
                "and memory. Start threads and programs and open files and connections at their first use, not when "
                "the module is imported.",
            ),
            LogEvent(
                "heartbeat_failed",
                "error",
                ("error",),
                "The heartbeat failed with an error of the program; the traceback follows. It goes on. Report it.",
            ),
            LogEvent(
                "heartbeat_missed",
                "warning",
                ("error",),
                "The heartbeat did not reach Redis and is tried again soon. Leases end if this goes on for the length"
                " of a lease. Check that Redis is reachable: `orc doctor`. Look at the network.",
            ),
            LogEvent(
                "inboxes_unread",
                "warning",
                ("error",),
                "The worker could not read the inboxes of its agents or adopt entries. It tries again with growing "
                "pauses. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "inbox_missing",
                "warning",
                ("agent",),
                "The inbox of the agent, or its consumer group, is gone. The worker makes it again. Check whether "
                "keys are deleted or evicted.",
            ),
            LogEvent(
                "lease_lost",
                "warning",
                ("agent", "attempt", "task"),
                "The lease of a running attempt ended, and another process has the task. The worker cancels the "
                "handler and stores nothing. *Often*: look for long pauses of the process, or raise `lease` of the "
                "agent.",
            ),
            LogEvent(
                "log_level_changed",
                "info",
                ("new_level",),
                "A command, or its end, changed the level of the log. No action.",
            ),
            LogEvent(
                "program_shut_out",
                "error",
                ("error", "floor"),
                "The pool admits only programs of a newer format, `floor`. The program finishes its work and ends "
                "with exit code 78. Install the newer version: [upgrades](../guides/upgrades.md).",
            ),
            LogEvent(
                "progress_dropped",
                "warning",
                ("agent", "attempt", "error", "task"),
                "A full Redis refused a progress report, and the worker dropped it. Raise `maxmemory` or remove data.",
            ),
            LogEvent(
                "registration_failed",
                "warning",
                ("agent", "error"),
                "The worker could not register `agent`. It tries again with its next heartbeat. Look at `error`.",
            ),
            LogEvent(
                "renewal_refused",
                "warning",
                ("agent", "error"),
                "Redis refused to renew the leases of `agent`, for example because a key has another type. The other"
                " agents of the worker keep theirs. It tries again with its next heartbeat. Look at `error`.",
            ),
            LogEvent(
                "worker_refused",
                "error",
                ("error",),
                "The supervisor refuses this worker, because its registration is not signed with the secret of the "
                "pool. The worker finishes what it runs and ends with exit code 78. Set `control.secret` to that of "
                "the supervisor: [control](../guides/control.md#signatures).",
            ),
            LogEvent(
                "registration_refused",
                "error",
                ("agent", "error"),
                "Redis has lost a limit of `agent`, which gets no tasks until the limit is defined again. The worker "
                "tries again with each heartbeat. Define the limit in the settings of this worker, or start the "
                "worker that defines it.",
            ),
            LogEvent(
                "shutdown_forced",
                "error",
                (),
                "Handlers did not end after the drain, so the worker ends its process without them. Make the handlers"
                " end when they are cancelled.",
            ),
            LogEvent(
                "task_failed",
                "error",
                ("agent", "attempt", "deaths?", "reason", "skill", "task", "where?"),
                "The task is a [dead letter](../guides/dead-letters.md) now: its last attempt failed, its arguments "
                "or its result are invalid or too large, or its handler raised `Reject`. Look at `reason`, at the "
                "line `where` (of the exception, else of the handler), and at `orc dead show`. The traceback follows, "
                "unless the attempt before failed in the same lines of code. With `deaths` its workers died, and the "
                "line is that of a worker host, another worker or the supervisor.",
            ),
            LogEvent(
                "task_asked",
                "info",
                ("agent", "attempt", "question", "skill", "task"),
                "A handler asked a person, and its attempt has ended. `orc tasks answer` lets the task continue.",
            ),
            LogEvent(
                "task_joins",
                "info",
                ("agent", "attempt", "join", "skill", "task"),
                "A handler joins tasks that have not ended, and its attempt has ended. Their ends let the task go on.",
            ),
            LogEvent(
                "spend_not_settled",
                "warning",
                ("error", "task"),
                "A worker could not store what a call of `ctx.spend` used. The end of the attempt books it as the "
                "budget says of lost calls. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "effect_outcome_unknown",
                "warning",
                ("decided_by", "decision", "effect", "task"),
                "An attempt found an effect that was begun and has no outcome. `decision` says what comes next, and "
                "`decided_by` whose decision it is. `orc tasks effects` shows more.",
            ),
            LogEvent(
                "provider_blocked",
                "warning",
                ("provider", "reason", "state", "task", "until_ms"),
                "A provider told to wait, has no quota, or failed several times in a row. No worker of the pool, or of "
                "the pools that share it, calls it until then. `orc limits list` shows it, and `orc limits clear` ends "
                "it early.",
            ),
            LogEvent(
                "provider_states_not_copied",
                "warning",
                ("error", "provider"),
                "The program could not copy the state of a shared provider into the pool. Until it succeeds, tasks may "
                "start and find the provider blocked. It tries again. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "provider_not_blocked",
                "warning",
                ("error", "provider", "state"),
                "A provider told to wait, and Redis could not store it, so that other workers may call the provider "
                "meanwhile. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "provider_answer_unreadable",
                "warning",
                ("error",),
                "An exception left a block of `ctx.provider`, and its attributes cannot be read for a time to wait. It "
                "goes on to the handler. Raise orchestrator.Throttled in its place.",
            ),
            LogEvent(
                "provider_call_not_settled",
                "warning",
                ("error", "provider"),
                "The end of a call of a provider could not be stored. Its place becomes free when its lease ends, and "
                "the tokens that it reserved stay counted. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "provider_leases_not_renewed",
                "warning",
                ("count", "error", "provider"),
                "The leases of running calls of a provider could not be renewed. If that goes on, other calls take "
                "their places. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "provider_places_lost",
                "warning",
                ("count", "provider"),
                "Leases of running calls of a provider expired, because they were not renewed in time, and "
                "other calls took their places, so that more calls run than the limit allows at once. "
                "The calls go on, and get places back when some are free.",
            ),
            LogEvent(
                "task_awaits_lock",
                "debug",
                ("agent", "attempt", "reason", "retry_in_ms", "skill", "task"),
                "Another task has the execution lock that the attempt needs before its handler starts. The task waits "
                "for it. No action.",
            ),
            LogEvent(
                "task_awaits_version",
                "warning",
                ("agent", "attempt", "reason", "skill", "task", "where"),
                "The arguments do not fit this version of the skill, and another version may take them. The task "
                "waits for a worker that has it. If none comes: cancel the task, or start that version.",
            ),
            LogEvent(
                "task_cancelled",
                "info",
                ("agent", "attempt", "skill", "task"),
                "The task was cancelled while its handler ran, and the handler has ended. No action.",
            ),
            LogEvent(
                "task_lines_left_out",
                "info",
                ("count", "events"),
                "The worker wrote as many lines about tasks as it may in a second, and left out `count`; `events` "
                "counts them by event. No action: `orc tasks list` and `orc dead list` have all tasks.",
            ),
            LogEvent(
                "task_released",
                "debug",
                ("agent", "attempt", "reason", "skill", "task"),
                "The worker returned a task whose handler had not begun. No attempt is counted. No action.",
            ),
            LogEvent(
                "task_requeued",
                "info",
                ("agent", "attempt", "reason", "skill", "task"),
                "The worker stopped an attempt, and the task runs again; no attempt is counted. `reason` says why. No "
                "action.",
            ),
            LogEvent(
                "task_snoozed",
                "info",
                ("agent", "attempt", "reason", "retry_in_ms", "skill", "task", "where"),
                "A handler raised `Snooze`, or Redis or an exclusive lock was not available. The task runs again after "
                "`retry_in_ms`, and no attempt is counted. *Often*: look at `reason`.",
            ),
            LogEvent(
                "task_started",
                "debug",
                ("agent", "attempt", "skill", "task"),
                "A handler starts. No action.",
                up_level="info",
            ),
            LogEvent(
                "task_succeeded",
                "debug",
                ("agent", "attempt", "ran_ms", "skill", "task"),
                "A handler has returned, and Redis has its result. No action.",
                up_level="info",
            ),
            LogEvent(
                "timings_refused",
                "debug",
                ("error",),
                "Redis did not store the worker's counters of attempts. The next heartbeat sends them. No action.",
            ),
            LogEvent(
                "unblock_refused",
                "warning",
                ("error",),
                "The Redis user of the worker may not use CLIENT ID or CLIENT UNBLOCK, so that the worker reads "
                "the inboxes of its agents more often. `orc doctor` names the rights.",
            ),
            LogEvent(
                "unread_entries_release_failed",
                "warning",
                ("agent", "error"),
                "A stopping worker could not ask Redis for entries that it had not read, to requeue them. Other "
                "workers adopt such entries after the lease. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "unseen_entries_returned",
                "warning",
                ("agent", "count"),
                "The event loop of the worker did not see `count` entries that the worker had read, so the heartbeat "
                "returned them to their queues. *Often*: look for a handler that blocks the loop, and use `def` or "
                "`process=True`.",
            ),
            LogEvent(
                "entries_read",
                "debug",
                ("agent", "count"),
                "A read of the agent's inbox brought `count` entries, which start now. No action.",
            ),
            LogEvent(
                "heartbeat_sent",
                "debug",
                ("running",),
                "The heartbeat has renewed the leases and the registration. No action.",
            ),
            LogEvent(
                "note_received",
                "debug",
                ("kind",),
                "The worker read an urgent message: a cancel, waiting suspects or awaited tasks. No action.",
            ),
            LogEvent(
                "output_stored",
                "debug",
                ("count",),
                "Redis has stored `count` chunks of output and reports of progress. No action.",
            ),
            LogEvent(
                "verdicts_stored",
                "debug",
                ("count",),
                "Redis has answered `count` verdicts in one call. No action.",
            ),
            LogEvent(
                "waits_recorded",
                "debug",
                ("count",),
                "The worker told Redis for which tasks `count` of its parents wait. No action.",
            ),
            LogEvent(
                "waits_not_recorded",
                "debug",
                ("error",),
                "Redis did not store for which tasks the worker's parents wait, or which slots they lend. The worker "
                "tries again within a second.",
            ),
            LogEvent(
                "worker_drain_started",
                "info",
                ("running",),
                "An operator drains the worker: it finishes what runs, takes nothing new, and stays. `orc workers "
                "resume` ends the drain.",
            ),
            LogEvent(
                "worker_reregistered",
                "info",
                (),
                "The registry had removed the worker, and the worker has registered again. *Often*, with "
                "`worker_expired`: raise `worker.heartbeat_s` or look at the connection.",
            ),
            LogEvent(
                "worker_resumed",
                "info",
                (),
                "The drain of the worker has ended, and it takes tasks again. No action.",
            ),
            LogEvent(
                "worker_started",
                "info",
                ("agents",),
                "The worker is registered and reads its inboxes. No action.",
            ),
            LogEvent(
                "worker_stop_requested",
                "info",
                ("command?", "immediately", "running"),
                "A signal or an operator (`command`) told the worker to stop. It drains. No action.",
            ),
            LogEvent(
                "worker_stopped",
                "info",
                ("unfinished",),
                "The worker has deregistered. `unfinished` counts entries whose verdicts are not stored; other "
                "workers adopt them after the lease. A number above 0 means that Redis did not answer.",
            ),
            LogEvent(
                "worker_waits_for_redis",
                "warning",
                ("error",),
                "The worker starts, and Redis does not answer. It tries again within a second, without end, and logs "
                "this every 10 s. Check that Redis is reachable: `orc doctor`.",
            ),
        ),
    ),
    EventSection(
        "Supervisor",
        "The supervisor writes these, most of them only while it leads.",
        (
            LogEvent(
                "assign_failed",
                "warning",
                ("error",),
                "The supervisor could not assign. It tries again with growing pauses and then looks at everything. "
                "Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "assign_refused",
                "error",
                ("error", "queue"),
                "Redis refused to assign the tasks of a skill or for one agent, mostly because of damaged data. The "
                "supervisor then assigns for each agent of the skill apart, so that other agents go on, and the "
                "reconciler looks at the pool. See `orc keys check`.",
            ),
            LogEvent(
                "control_read_failed",
                "warning",
                ("error",),
                "The supervisor could not read the control stream. It tries again. Check that Redis is reachable: "
                "`orc doctor`.",
            ),
            LogEvent(
                "control_sweep_failed",
                "warning",
                ("error",),
                "The supervisor could not compare the desired state with the signatures and held tasks. It tries "
                "again at the next sweep. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "damage_found",
                "error",
                ("code", "count", "examples", "found"),
                "The reconciler found damage that it does not repair. See `orc keys check` and "
                "[Repair](../guides/repair.md).",
            ),
            LogEvent(
                "damage_repaired",
                "warning",
                ("code", "count", "done", "examples", "found"),
                "The reconciler repaired what Redis had lost; `found` and `done` say what. Find out why Redis loses "
                "data: [Repair](../guides/repair.md).",
            ),
            LogEvent(
                "desired_state_forged",
                "error",
                ("desired",),
                "Entries of the desired state had no true signature. The supervisor undid them, and the last signed "
                "commands are active again. Check which users may write to the pool's keys.",
            ),
            LogEvent(
                "desired_state_lost",
                "error",
                ("desired",),
                "Redis has lost commands that this process knows. The process obeys them and writes them back. Find "
                "out what Redis has lost: [Reliability](../internals/reliability.md).",
            ),
            LogEvent(
                "doorbell_read_failed",
                "warning",
                ("error",),
                "The supervisor lost the connection on which it waits for work. It connects again and looks at "
                "everything. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "entries_recovered",
                "warning",
                ("agent", "count"),
                "The supervisor took back `count` entries that no worker of the agent would have finished. *Often*: "
                "look for agents without workers, or with too few slots.",
            ),
            LogEvent(
                "event_trim_failed",
                "warning",
                ("error",),
                "The supervisor could not trim the stream of ended tasks. It tries again at the next sweep. Check "
                "that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "expire_failed",
                "warning",
                ("error",),
                "The supervisor could not remove silent workers from the registry. It tries again at the next sweep. "
                "Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "held_release_failed",
                "error",
                ("error",),
                "Redis refused to release the tasks that a stop held. See `orc keys check`.",
            ),
            LogEvent(
                "job_done",
                "info",
                ("command", "kind", "outcomes"),
                "A command for many tasks is done; further keys count the tasks by outcome. No action.",
            ),
            LogEvent(
                "job_interrupted",
                "warning",
                ("command", "error"),
                "Redis did not answer while the supervisor ran a command for many tasks. The command goes on from "
                "where it was. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "leadership_acquired",
                "info",
                ("supervisor",),
                "This supervisor holds the leader's lease and works. No action.",
            ),
            LogEvent(
                "leadership_needs_secret",
                "error",
                ("supervisor",),
                "The pool has signed commands, and this supervisor has no `control.secret`, so that it does not lead: "
                "it could not tell a forged start from a true one. Give it the secret of the pool; `orc doctor` names "
                "the programs without one.",
            ),
            LogEvent(
                "leadership_lost",
                "warning",
                ("supervisor",),
                "The supervisor could not renew the leader's lease and stops working until it has it again. *Often*: "
                "check that Redis is reachable (`orc doctor`), and look for pauses of the process.",
            ),
            LogEvent(
                "leadership_release_failed",
                "warning",
                ("error",),
                "A stopping supervisor could not return the lease. It ends after `supervisor.leader_lease_s`. No "
                "action.",
            ),
            LogEvent(
                "metrics_read_failed",
                "warning",
                ("error",),
                "The supervisor could not read the numbers of the pool, so `/metrics` has those of the process "
                "alone. It logs this once until a scrape succeeds. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "leadership_request_failed",
                "warning",
                ("error",),
                "Redis did not answer the request for the leader's lease. It is asked again. Check that Redis is "
                "reachable: `orc doctor`.",
            ),
            LogEvent(
                "leftovers_removed",
                "info",
                ("code", "count", "examples", "found"),
                "The reconciler removed harmless leftovers. No action. [Repair](../guides/repair.md) explains the "
                "codes.",
            ),
            LogEvent(
                "older_worker_stopped",
                "warning",
                ("floor", "format", "worker"),
                "A worker is older than the pool admits and cannot know it. The supervisor stops it, as `orc workers "
                "stop` does. Install the newer version: [upgrades](../guides/upgrades.md).",
            ),
            LogEvent(
                "registration_forged",
                "error",
                ("worker",),
                "The registration of `worker` is not signed with the secret of the pool, so the supervisor counts no "
                "slot of it. Set `control.secret` for that worker, or find out who started it: "
                "[control](../guides/control.md#signatures).",
            ),
            LogEvent(
                "registration_check_failed",
                "warning",
                ("error",),
                "The supervisor could not check the signatures of registrations. It tries again. Check that Redis is "
                "reachable: `orc doctor`.",
            ),
            LogEvent(
                "older_workers_failed",
                "warning",
                ("error",),
                "The supervisor could not look for workers that are older than the pool admits, or could not stop "
                "one. It tries again. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "payloads_swept",
                "info",
                ("deleted", "objects"),
                "The supervisor deleted objects from the payload store that no task needs: their tasks have expired or "
                "were deleted, or never arrived.",
            ),
            LogEvent(
                "payload_sweep_failed",
                "warning",
                ("error",),
                "The supervisor could not search the payload store for objects without a task. It tries again. Run "
                "`orc doctor`.",
            ),
            LogEvent(
                "housekeeping_failed",
                "warning",
                ("error",),
                "The scan of sessions, agents and locks could not read on. It begins again. Check that Redis is "
                "reachable: `orc doctor`.",
            ),
            LogEvent(
                "housekeeping_finished",
                "debug",
                ("keys",),
                "The supervisor has looked at every session, agent and lock of the prefix. No action.",
            ),
            LogEvent(
                "housekeeping_refused",
                "error",
                ("error",),
                "Redis refuses what the scan of sessions, agents and locks needs. It tries again in ten minutes. `orc "
                "doctor` names the missing rights.",
            ),
            LogEvent(
                "keys_evicted",
                "error",
                ("count", "policy"),
                "Redis has evicted keys, because its memory is full and its policy allows it: tasks and shared state "
                "are lost. The supervisor looks at every key now. Set `maxmemory-policy noeviction`, then see `orc "
                "keys check`.",
            ),
            LogEvent(
                "pool_failed",
                "error",
                ("error", "pool", "retry_in_ms"),
                "The supervisor cannot serve one of its pools; the traceback of an unexpected failure follows. It "
                "serves the others, and tries this one again. When it can serve none, it ends. Correct what `error` "
                "names: `orc doctor --pool POOL`.",
            ),
            LogEvent(
                "promote_failed",
                "warning",
                ("error",),
                "The supervisor could not make due tasks ready. It tries again. Check that Redis is reachable: `orc "
                "doctor`.",
            ),
            LogEvent(
                "budget_sweep_failed",
                "warning",
                ("error",),
                "The supervisor could not look at the budgets. It tries again. Check that Redis is reachable: `orc "
                "doctor`.",
            ),
            LogEvent(
                "budget_sweep_refused",
                "error",
                ("budget", "error"),
                "Redis refused to look at a budget, because a key has another type. Tasks of this budget wait. Run "
                "`orc doctor`; `orc budgets show` tells its state.",
            ),
            LogEvent(
                "budget_holds_were_lost",
                "warning",
                ("budget", "count"),
                "Attempts that do not run held something of a budget, because Redis lost writes. It counts as spent, "
                "or as free if its `--lost` says so. Compare the budget with the bill of the provider.",
            ),
            LogEvent(
                "shared_provider_cleared",
                "info",
                ("provider",),
                "The supervisor has ended what kept all pools from a provider that they share, because an operator "
                "cleared it. No action.",
            ),
            LogEvent(
                "provider_sweep_failed",
                "warning",
                ("error",),
                "The supervisor could not look at what keeps calls from providers that pools share. It tries again. "
                "Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "provider_sweep_refused",
                "error",
                ("error", "provider"),
                "Redis refused to copy what keeps calls from a provider that pools share, because a key has another "
                "type. Run `orc doctor` and `orc keys check`.",
            ),
            LogEvent(
                "budget_freed_tasks",
                "debug",
                ("budget", "count"),
                "Tasks that waited for a budget went back to their queues, because it has room. No action.",
            ),
            LogEvent(
                "reconcile_failed",
                "warning",
                ("error",),
                "The reconciler could not read on. It begins again. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "reconcile_finished",
                "debug",
                ("keys", "places"),
                "The reconciler has looked at every task. No action.",
            ),
            LogEvent(
                "reconcile_refused",
                "error",
                ("error",),
                "Redis refuses what the reconciler needs. It tries again in ten minutes. `orc doctor` names the "
                "missing rights.",
            ),
            LogEvent(
                "recover_failed",
                "warning",
                ("error",),
                "The supervisor could not take entries back. It tries again at the next sweep. Check that Redis is "
                "reachable: `orc doctor`.",
            ),
            LogEvent(
                "recover_refused",
                "error",
                ("agent", "error"),
                "Redis refused to take back the entries of one agent. The reconciler looks at the pool. See `orc keys"
                " check`.",
            ),
            LogEvent(
                "schedule_fire_failed",
                "warning",
                ("error",),
                "The supervisor could not fire schedules. It tries again. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "schedule_fired",
                "info",
                ("at_ms", "missed", "schedule", "task"),
                "A schedule submitted its task. `missed` counts times that were skipped. No action.",
            ),
            LogEvent(
                "schedule_invalid",
                "error",
                ("error", "schedule"),
                "A schedule cannot be read or its arguments are invalid. The supervisor tries it again in a minute. "
                "Correct it: `orc schedules add`.",
            ),
            LogEvent(
                "schedule_task_refused",
                "warning",
                ("error", "schedule"),
                "The task of a schedule was refused, for example by a full queue or a stop. This time leads to no "
                "task. Look at `error`.",
            ),
            LogEvent(
                "scopes_kept",
                "info",
                ("upkeep",),
                "The supervisor took steps of upkeep in sessions and agents; `upkeep` counts the changes by step. No "
                "action.",
            ),
            LogEvent(
                "selection_mismatched",
                "error",
                ("command",),
                "The list of tasks of a command is not the one that was signed. Nothing was done. Give the command "
                "again, and check which users may write to the pool's keys.",
            ),
            LogEvent(
                "control_read",
                "debug",
                ("count",),
                "The supervisor read `count` entries of the control stream. No action.",
            ),
            LogEvent(
                "control_swept",
                "debug",
                (),
                "The supervisor compared the desired state with the signatures and held tasks. No action.",
            ),
            LogEvent(
                "doorbell_read",
                "debug",
                ("names",),
                "Notifications arrived about the queues and loops `names`. No action.",
            ),
            LogEvent(
                "events_trimmed",
                "debug",
                ("entry",),
                "The supervisor removed the oldest ended tasks, before `entry`, from their stream. No action.",
            ),
            LogEvent(
                "leadership_renewed",
                "debug",
                ("supervisor",),
                "The supervisor has the leader's lease, for another `supervisor.leader_lease_s`. No action.",
            ),
            LogEvent(
                "recover_finished",
                "debug",
                ("count",),
                "The supervisor looked for entries that no worker will finish, in the inboxes of `count` agents. No "
                "action.",
            ),
            LogEvent(
                "registry_checked",
                "debug",
                (),
                "The supervisor looked for workers without heartbeats. No action.",
            ),
            LogEvent(
                "schedules_checked",
                "debug",
                ("count",),
                "The supervisor looked for due schedules; `count` are due. No action.",
            ),
            LogEvent(
                "tasks_assigned",
                "debug",
                ("count", "queues"),
                "The supervisor put `count` tasks of the queues into inboxes. No action.",
            ),
            LogEvent(
                "tasks_promoted",
                "debug",
                ("count", "expired"),
                "The supervisor made `count` due tasks ready, and `expired` tasks were too late to start. No action.",
            ),
            LogEvent(
                "server_clock_stepped",
                "warning",
                ("step_s",),
                "The clock of the Redis server moved by `step_s` seconds. Forward: leases and limit windows ended "
                "early, and holders get one lease of grace. Back: limits stay closed and scheduled tasks wait until "
                "the clock has caught up. Look at time synchronisation.",
            ),
            LogEvent(
                "server_restarted",
                "info",
                (),
                "Redis was restarted. The reconciler looks at every task now. No action.",
            ),
            LogEvent(
                "server_setting_risky",
                "warning",
                ("problem",),
                "A setting of the Redis server is a risk; `problem` names it and says what to do. `orc doctor` shows "
                "all of them.",
            ),
            LogEvent(
                "supervisor_failed",
                "error",
                ("error",),
                "The supervisor ends with an error: Redis refuses its login, or is not fit for it. The service manager "
                "starts it again. Correct what `error` names.",
            ),
            LogEvent(
                "supervisor_stands_by",
                "info",
                ("supervisor",),
                "Another supervisor leads. This one stands by, and takes over soon after the leader ends. No action.",
            ),
            LogEvent(
                "supervisor_stop_requested",
                "info",
                ("signal",),
                "The supervisor got a signal and stops. No action.",
            ),
            LogEvent(
                "key_types_failed",
                "warning",
                ("error",),
                "The supervisor could not look at the types of keys. It tries again at the next sweep. Check that "
                "Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "loop_failed",
                "error",
                ("loop",),
                "A loop of the supervisor met data that it cannot read, and begins again. `orc keys check` names "
                "damaged data; report the traceback.",
            ),
            LogEvent(
                "supervisor_waits_for_redis",
                "warning",
                ("error",),
                "The supervisor has started and Redis does not answer. It tries again, at least once a second. Check "
                "that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "suspended_tasks_released",
                "info",
                ("count", "scope"),
                "A stop ended, and `count` tasks that it held went back to their queues. No action.",
            ),
            LogEvent(
                "worker_expired",
                "warning",
                ("worker",),
                "A worker sent no heartbeat for four intervals. The registry forgets it, and other workers adopt its "
                "entries. Look at its machine.",
            ),
        ),
    ),
    EventSection(
        "Client",
        "A program that submits, waits or takes locks writes these. A worker writes them too, for its own client and "
        "locks.",
        (
            LogEvent(
                "answer_not_recorded",
                "warning",
                ("error", "question", "task"),
                "The answer to a question is stored, but it is not recorded. Look at `error`.",
            ),
            LogEvent(
                "chat_copy_incomplete",
                "warning",
                ("session",),
                "A cap dropped messages of a chat before its second storage had them. Look at `chat_not_saved`; let "
                "each program that writes to the chat save it, or raise `chat.max_messages` or `chat.max_bytes`.",
            ),
            LogEvent(
                "chat_messages_unreadable",
                "warning",
                ("count",),
                "`count` messages of a chat hold no JSON; another program wrote to its keys. They are left out.",
            ),
            LogEvent(
                "chat_not_restored",
                "warning",
                ("error", "session"),
                "A chat in Redis lacks messages that its second storage may have. The program got what Redis has. The "
                "next read tries again. Look at `error`.",
            ),
            LogEvent(
                "chat_not_saved",
                "warning",
                ("error", "session"),
                "A change of a chat is in Redis, but not yet in its second storage. The next change saves it too. Look "
                "at `error`.",
            ),
            LogEvent(
                "chats_not_counted",
                "warning",
                ("error",),
                "The sizes of changed chats could not be stored in the counts of the tenant. The next flush, within "
                "5 s, stores them. Look at `error`.",
            ),
            LogEvent(
                "following_interrupted",
                "warning",
                ("error",),
                "The client lost the connection on which it follows output. It connects again and reads on from its "
                "place. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "hints_refused",
                "warning",
                ("error",),
                "The Redis user may not subscribe to the channels of output. Output arrives a few seconds late. Give "
                "the user the right to the channels.",
            ),
            LogEvent(
                "lock_not_recorded",
                "warning",
                ("error", "lock"),
                "A lock was taken from its holder, but it is not recorded. Look at `error`.",
            ),
            LogEvent(
                "lock_release_failed",
                "warning",
                ("error", "lock"),
                "A lock could not be released. It ends by itself after its time. Check that Redis is reachable: `orc "
                "doctor`.",
            ),
            LogEvent(
                "lock_renewal_failed",
                "warning",
                ("error", "locks"),
                "Locks could not be renewed in time. The owner is told before they end. Check that Redis is "
                "reachable: `orc doctor`.",
            ),
            LogEvent(
                "replies_interrupted",
                "warning",
                ("error",),
                "The client lost the connection on which results arrive. It connects again and reads the records of "
                "the tasks it waits for. Check that Redis is reachable: `orc doctor`.",
            ),
            LogEvent(
                "no_agent_for_child",
                "warning",
                ("error",),
                "A handler submitted a task that no live agent takes; the task waits until one does. `error` has the "
                "nearest name. Correct the name, or start a worker. Logged once per skill and process.",
            ),
            LogEvent(
                "payloads_left",
                "warning",
                ("error",),
                "The payload store did not delete the values of deleted tasks. The supervisor deletes them later.",
            ),
            LogEvent(
                "payload_left",
                "debug",
                ("error", "task"),
                "The client could not delete arguments from the payload store whose task Redis did not take. The "
                "supervisor deletes them later.",
            ),
            LogEvent(
                "results_not_read",
                "debug",
                ("error",),
                "The client could not read the records of tasks. It tries again within 5 s. Check that Redis is "
                "reachable: `orc doctor`.",
            ),
            LogEvent(
                "saved_lines_unreadable",
                "warning",
                ("count", "path"),
                "`count` lines of a file of a second storage are damaged, as after a crash in the middle of a write. "
                "They are skipped. Restore the file from a backup if one line was not torn by a crash.",
            ),
            LogEvent(
                "saved_messages_unreadable",
                "warning",
                ("count", "session"),
                "`count` items in the second storage of a chat are damaged. They are skipped, and the chat reports "
                "them as missing. Restore the storage from a backup.",
            ),
            LogEvent(
                "schedule_change_not_recorded",
                "warning",
                ("action", "error", "schedule"),
                "A schedule was changed, but it is not recorded. Look at `error`.",
            ),
            LogEvent(
                "loss_check_failed",
                "warning",
                ("error",),
                "A client has connected to Redis again and cannot tell whether its last tasks are still there. Look at "
                "`error`.",
            ),
            LogEvent(
                "loss_not_recorded",
                "warning",
                ("error",),
                "A supervisor noticed that Redis has lost writes, but could not store that. Look at `error`.",
            ),
            LogEvent(
                "simulation_indices_behind",
                "warning",
                ("error", "scope"),
                "A record was stored or removed, but the indices of its simulation could not follow. The next "
                "change of the memory or the repair walk makes up for it. Look at `error`.",
            ),
            LogEvent(
                "vector_index_behind",
                "warning",
                ("error", "scope"),
                "A record was stored or removed, but the vector set of its memory could not follow. The next change of "
                "the memory or the repair walk makes up for it. Look at `error`.",
            ),
            LogEvent(
                "capabilities_unknown",
                "warning",
                ("error",),
                "Redis refused COMMAND INFO, so that the program uses no command that Redis 7.0 lacks. Allow the user "
                "`+command|info`.",
            ),
            LogEvent(
                "vector_sets_refused",
                "warning",
                ("error",),
                "Redis has vector sets no longer, as after a failover to an older server, or refuses them to the user. "
                "Memories compare vectors in another way; the server is asked again every minute. Run `orc doctor`.",
            ),
            LogEvent(
                "changes_not_recorded",
                "warning",
                ("action", "error", "scopes"),
                "A program changed the state of `scopes` scopes, but it is not recorded. Look at `error`.",
            ),
            LogEvent(
                "tasks_not_recorded",
                "warning",
                ("action", "error", "tasks"),
                "A program cancelled or retried `tasks` tasks, but it is not recorded. Look at `error`.",
            ),
            LogEvent(
                "writes_lost",
                "error",
                ("since_ms", "submits", "task_ids?"),
                "Redis has lost writes that it had confirmed, in a failover or a restart: `submits` accepted tasks at "
                "least (0: other writes), from `since_ms` on. A client names some in `task_ids`, a supervisor counts "
                "those of all clients. Submit them again; docs/guides/operations.md has a section.",
            ),
        ),
    ),
    EventSection(
        "Dashboard",
        "`orc web` writes these.",
        (
            LogEvent(
                "display_failed",
                "warning",
                ("error", "part", "skill"),
                "The display function of an agent with this skill raised, took too long, or could not be imported. "
                "Pages show the size of the value. Correct the function, or `dashboard.agents`.",
            ),
        ),
    ),
    EventSection(
        "Demo",
        "The agents of `orc demo` write these.",
        (
            LogEvent(
                "tree_scanned",
                "info",
                ("files", "skipped"),
                "The demo has read the source tree. No action.",
            ),
        ),
    ),
)

EVENTS: Final[dict[str, LogEvent]] = {event.name: event for section in SECTIONS for event in section.events}

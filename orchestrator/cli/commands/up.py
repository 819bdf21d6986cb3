"""`orc up`: embedded Redis, supervisor and workers in one terminal."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.cli.commands.web import has_dashboard
from orchestrator.cli.commands.worker import check_agents, worker_command
from orchestrator.cli.processes import Child, ChildProcessFailed, Part, blocked_signals, end_in_order
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import ConfigError, InvalidInput
from orchestrator.core.notify import Notifier

if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence

    from orchestrator.cli.processes import Signals
    from orchestrator.core.settings import Settings
    from orchestrator.services import Attachment

REDIS_LOOK_S: Final = 1.0
STOP_TIMEOUT_S: Final = 40.0
"""How long Redis may take to stop, because it writes its data first."""
SUPERVISOR_TIMEOUT_S: Final = 15.0
DRAIN_MARGIN_S: Final = 20.0
"""How long a worker host may take beyond the drain time of its workers, which it kills before that."""
WEB_TIMEOUT_S: Final = 10.0

HOST: Final = "worker host"

commands = Commands(
    "up",
    "orc up my_agents:agent",
    "orc up my_agents:agent --processes 4",
    "orc up my_agents:agent --reload",
    "orc up my_agents:agent --no-web",
    "orc up my_agents:agent --pool mail --pool billing",
    "ORC_REDIS__URL=redis://localhost:6379/0 orc up my_agents:agent",
)


@commands.itself
def up(
    *apps: Annotated[str, positional("MODULE:AGENT")],
    processes: Annotated[int | None, option("--processes", metavar="N")] = None,
    reload: Annotated[bool, option("--reload")] = False,
    no_web: Annotated[bool, option("--no-web")] = False,
    common: Globals = DEFAULTS,
) -> int:
    """Run Redis, a supervisor, workers and the dashboard in one terminal, for one pool or for all that `--pool` names.

    Args:
        apps: Agents to run, as my_agents:agent.
        processes: Worker processes of each pool [1].
        reload: Restart the workers when their source changes; running tasks are not lost.
        no_web: Do not serve the dashboard. It needs the extra `dashboard`, and serves one pool.
    """
    if reload and not apps:
        raise InvalidInput("--reload needs agents, as in `orc up my_agents:agent --reload`")
    pools, common = common.split_pools()
    host = worker_command(
        apps, processes, pools=pools, reload=reload, tells_tasks=True
    )  # checked before anything is started
    from orchestrator.core.secret_environment import take_secrets

    settings = common.settings(worker__processes=processes)
    take_secrets()  # the children get them from `environ`
    # With --reload the host waits for a correct source.
    if apps and not reload and (refused := check_agents(apps, common.environ())):
        return refused
    with ExitStack() as held:
        redis = None
        if settings.redis.url is None:
            redis = held.enter_context(_hold_redis())
        else:
            _check_redis(settings)  # one error here instead of one from every process
        parts = [Part(HOST, host, settings.worker.drain_s + DRAIN_MARGIN_S)] if apps else []
        parts.append(Part("supervisor", supervisor_command(pools), SUPERVISOR_TIMEOUT_S))
        if not no_web and len(pools) < 2 and has_dashboard():
            # It stays until the end, so that its pages show how the others stop.
            parts.append(Part("dashboard", web_command(pools), WEB_TIMEOUT_S, needed=False))
        _print_banner(redis, settings, apps, pools, reload=reload)
        with blocked_signals() as signals:
            exit_code = _run(parts, redis, signals, common)
        # From here on Ctrl-C ends the wait, not the shutdown of the server.
        if redis is not None:
            _stop_redis(redis)
    return exit_code


def supervisor_command(pools: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a supervisor; it reads its settings from the environment.

    Args:
        pools: that it serves, if not that of the settings.
    """
    served = [word for pool in pools for word in ("--pool", pool)]
    return [sys.executable, "-P", "-m", "orchestrator", "supervisor", "run", *served]


def web_command(pools: Sequence[str] = ()) -> list[str]:
    """Return the command that serves the dashboard of a pool; it prints the link that logs in."""
    chosen = [word for pool in pools for word in ("--pool", pool)]
    return [sys.executable, "-P", "-m", "orchestrator", "web", "--any-port", *chosen]


def _run(parts: list[Part], redis: Attachment | None, signals: Signals, common: Globals) -> int:
    Notifier.take()  # its variables are not for the children, which the service manager did not start
    environ = common.environ() if redis is None else {**common.environ(), "ORC_DATA_DIR": str(redis.data_dir)}
    children: list[Child] = []
    exit_code, orderly = 0, True
    signals.on_reload = lambda: _reload(children, common)
    try:
        # The supervisor is ready when the first worker registers.
        children = [Child(part, environ) for part in reversed(parts)][::-1]
        received = _watch(children, redis, signals)
        output.say(f"{received.name}: workers finish their tasks, then everything stops; repeat to stop faster")
    except ChildProcessFailed as failed:
        exit_code = failed.exit_code
    finally:
        orderly = end_in_order(children, signals)
    return exit_code if orderly else exit_code or 130


def _reload(children: list[Child], common: Globals) -> None:
    """Let the children reload their settings, which log what changed; keep the time that the workers need to drain."""
    for child in children:
        child.ask_to_reload()
    try:
        drain_s = common.settings().worker.drain_s
    except ConfigError:
        return  # the children refuse the settings too, and say why
    for child in children:
        if child.part.name == HOST:
            child.part = replace(child.part, timeout_s=drain_s + DRAIN_MARGIN_S)


def _watch(children: list[Child], redis: Attachment | None, signals: Signals) -> signal.Signals:
    """Run the processes, restart those that die, and return the signal that ends them."""
    import time

    while True:
        due = [due_s for child in children if (due_s := child.poll()) is not None]
        if redis is not None and not redis.guardian_is_alive():
            output.say("redis stopped unexpectedly; restarting it")
            _hold_redis().close()
        next_look_s = min(due, default=float("inf")) - time.monotonic()
        received = signals.wait(min(next_look_s, REDIS_LOOK_S))
        if received is not None:
            return received


def _hold_redis() -> Attachment:
    from orchestrator.services import hold_embedded

    return hold_embedded()


def _check_redis(settings: Settings) -> None:
    from orchestrator.services import check_answers

    check_answers(settings)


def _stop_redis(redis: Attachment) -> None:
    stopped = redis.close(wait_s=STOP_TIMEOUT_S)
    output.say("stopped; the data is kept" if stopped else "stopped; redis keeps running for other processes")


def _print_banner(
    redis: Attachment | None, settings: Settings, apps: tuple[str, ...], pools: Sequence[str], *, reload: bool
) -> None:
    count = settings.worker.processes * max(1, len(pools))
    workers = f"{count} worker process{'es' * (count > 1)} for {', '.join(apps)}" if apps else "no workers"
    lines = [f"running      supervisor, {workers}{', restarted when their source changes' if reload else ''}"]
    if len(pools) > 1:
        lines.append(f"pools        {', '.join(pools)}")
    if redis is not None:
        lines += [f"redis        {redis.version} at {redis.url}", f"data in      {redis.data_dir}"]
    named = f" --pool {pools[0]}" if pools else ""
    lines += [
        f"try          orc tasks submit SKILL -a name=value --wait{named}     (in another terminal, in this folder)",
        f"             orc status{named}",
        "stop         Ctrl-C",
    ]
    output.say(*lines)

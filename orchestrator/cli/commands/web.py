"""`orc web`: serve the dashboard; login, users, tokens."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option
from orchestrator.core.errors import ConfigError

if TYPE_CHECKING:
    from orchestrator.dashboard.serving import Serving

commands = Commands(
    "web",
    "orc web",
    "orc web --port 9000 --read-only",
    "orc web user add ada --role admin",
    "orc web login",
)
commands.lazy("user", "orchestrator.cli.commands.web_users:users", "Add, list and remove users of the dashboard.")
commands.lazy("token", "orchestrator.cli.commands.web_users:tokens", "Make, list and revoke tokens for its API.")


@commands.itself
def web(
    *,
    host: Annotated[str | None, option("--host", metavar="ADDRESS")] = None,
    port: Annotated[int | None, option("--port", metavar="PORT")] = None,
    any_port: Annotated[bool, option("--any-port")] = False,
    base_path: Annotated[str | None, option("--base-path", metavar="PATH")] = None,
    read_only: Annotated[bool, option("--read-only")] = False,
    common: Globals = DEFAULTS,
) -> None:
    """Serve the dashboard until SIGTERM or Ctrl-C: what runs, what waits and why, who did what, and the buttons.

    `orc web user` and `orc web token` say who may log in; without users a one-time link does.

    Args:
        host: Address to listen at [127.0.0.1].
        port: Port to listen at; 0 takes a free one [8470].
        any_port: Take a free port when that one is taken, as `orc up` does.
        base_path: Path under which a proxy serves it, as /orc.
        read_only: Refuse every command, and show no buttons.
    """
    _check_extra()
    from orchestrator.core.event_loop import run_loop
    from orchestrator.core.log import configure_logging
    from orchestrator.core.secret_environment import take_secrets
    from orchestrator.dashboard.serving import serve

    settings = common.settings(
        dashboard__host=host,
        dashboard__port=port,
        dashboard__base_path=base_path,
        dashboard__read_only=read_only or None,
    )
    take_secrets()
    configure_logging(level=settings.logging.level, format=settings.logging.format, secrets=settings.secrets)

    async def run() -> None:
        await serve(settings, started=_tell, any_port=any_port)

    run_loop(run)


@commands.command("login", "orc web login")
async def login(*, common: Globals = DEFAULTS) -> None:
    """Print a link that logs one browser in as admin, once, within 10 minutes."""
    chosen = common.settings().dashboard
    async with common.services() as services:
        secret = await services.accounts.make_link()
    output.write(f"http://{chosen.host}:{chosen.port}{chosen.base_path or ''}/login?link={secret}\n")


def _tell(serving: Serving) -> None:
    output.say(f"dashboard    {serving.link or serving.url}")


def has_dashboard() -> bool:
    """Return whether the extra `dashboard` is installed."""
    return all(find_spec(name) is not None for name in ("jinja2", "starlette", "uvicorn"))


def _check_extra() -> None:
    if not has_dashboard():
        raise ConfigError("the dashboard needs the extra `dashboard`: pip install 'redis-orchestrator[dashboard]'")

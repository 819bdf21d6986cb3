"""Asks a process for its health: `python -m orchestrator.monitoring.probe live|ready [--address ADDRESS]`.

The command exits with 0 if the process answers that it is live or ready, else with 1. Containers run it every few
seconds, so it imports neither the application nor anything else that takes long to load.
"""

from __future__ import annotations

import os
import socket
import sys

from orchestrator.core.health_address import parse_health_address

TYPE_CHECKING = False  # as in `health_address`
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_ADDRESS = "127.0.0.1:9471"
VARIABLES = ("ORC_SUPERVISOR__HEALTH", "ORC_WORKER__HEALTH")
TIMEOUT_S = 3.0
MAX_BYTES = 65_536
USAGE = """\
usage: python -m orchestrator.monitoring.probe live|ready [--address ADDRESS] [--timeout SECONDS]

ADDRESS is host:port, a port, or unix:/path. Default: ORC_SUPERVISOR__HEALTH and ORC_WORKER__HEALTH, else
127.0.0.1:9471. Of two addresses one may have no server. The exit status is 0 if all servers that are there answer that
their process is live or ready, else 1.
"""


class Failed(Exception):
    """The process is not healthy, does not answer, or was not asked."""


class NoServer(Failed):
    """No process serves at an address."""


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    if "-h" in arguments or "--help" in arguments:
        sys.stdout.write(USAGE)
        return 0
    try:
        question, addresses, timeout_s = _parse(arguments, environ)
        answers = _ask_all(addresses, f"/{question}z", timeout_s)
    except Failed as failed:
        sys.stderr.write(f"error: {failed}\n")
        return 1
    for status, body in answers:
        (sys.stdout if status == 200 else sys.stderr).write(body if body.endswith("\n") else f"{body}\n")
    return 0 if all(status == 200 for status, _ in answers) else 1


def _ask_all(addresses: Sequence[str], path: str, timeout_s: float) -> list[tuple[int, str]]:
    """Ask all servers. An image sets addresses for a supervisor and for a worker, and a container runs one of them.

    Raises:
        Failed: one of the servers gave no answer, or there is none.
    """
    answers, absent = [], []
    for address in addresses:
        try:
            answers.append(ask(address, path, timeout_s))
        except NoServer as failed:
            absent.append(str(failed))
    if not answers:
        raise Failed("; ".join(absent))
    return answers


def ask(address: str, path: str, timeout_s: float) -> tuple[int, str]:
    """Send one GET and return the status and the body.

    Raises:
        NoServer: no process serves there.
        Failed: the address is invalid, or no HTTP answer came in time.
    """
    try:
        target = parse_health_address(address)
    except ValueError as invalid:
        raise Failed(f"address {address!r} {invalid}") from None
    try:
        with _connect(target, timeout_s) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n".encode())
            reply = b""
            while len(reply) < MAX_BYTES and (part := connection.recv(MAX_BYTES)):
                reply += part
    except (ConnectionRefusedError, FileNotFoundError) as failed:
        raise NoServer(f"no answer from {address}: {failed}") from None
    except OSError as failed:
        raise Failed(f"no answer from {address}: {failed}") from None
    head, _, body = reply.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise Failed(f"the answer from {address} is not HTTP")
    return int(words[1]), body.decode(errors="replace")


def _connect(target: str | tuple[str, int], timeout_s: float) -> socket.socket:
    if not isinstance(target, str):
        return socket.create_connection(target, timeout_s)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(target)
    except OSError:
        connection.close()
        raise
    return connection


def _parse(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[str, list[str], float]:
    """Return the question, the addresses and the time-out. `argparse` would take as long to load as the rest."""
    questions: list[str] = []
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in {"--address", "--timeout"} and (equals or rest):
            options[name] = value if equals else rest.pop(0)
        else:
            questions.append(word)
    if len(questions) != 1 or questions[0] not in {"live", "ready"}:
        raise Failed("ask for `live` or `ready`; --help shows the options")
    try:
        timeout_s = float(options.get("--timeout", TIMEOUT_S))
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < 3600:
        raise Failed("--timeout takes a number of seconds")
    address = options.get("--address")
    return questions[0], [address] if address else _addresses_from(environ), timeout_s


def _addresses_from(environ: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(value for name in VARIABLES if (value := environ.get(name)))) or [DEFAULT_ADDRESS]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], os.environ))

"""Checks a Sentinel group: which sentinels answer, whether they can agree, and what a change of the master loses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from anyio import to_thread

from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.store.sentinel_locator import ask

if TYPE_CHECKING:
    from orchestrator.core.redis_url import Node, RedisUrl
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding

ENOUGH: Final = 3
"""With fewer sentinels none may fail: a majority of all elects the one that promotes a replica."""


async def check_sentinels(context: CheckContext) -> list[DoctorFinding]:
    """Report sentinels that do not answer, too few of them, and writes that a change of the master loses."""
    place = context.settings.redis.place
    if place is None or place.kind != "sentinel":
        return [ok("redis-sentinel", "no sentinels")]
    answers = await to_thread.run_sync(_ask_all, place)
    return [*_sentinels(answers), *_writes(context)]


def _ask_all(place: RedisUrl) -> dict[Node, list[Any] | str]:
    answers = {node: ask(place, node, "MASTER", "CKQUORUM") for node in place.nodes}
    return {node: str(told[0]) if isinstance(told[0], Exception) else told for node, told in answers.items()}


def _sentinels(answers: dict[Node, list[Any] | str]) -> list[DoctorFinding]:
    silent = {node: answer for node, answer in answers.items() if isinstance(answer, str)}
    counted = f"{len(answers) - len(silent)} of {len(answers)} sentinels answer"
    found = []
    if silent:
        reasons = "; ".join(f"{node}: {reason}" for node, reason in silent.items())
        report = problem if 2 * len(silent) >= len(answers) else warning
        fix = "start them, or correct their addresses, the name of the group and their login in ORC_REDIS__URL"
        found.append(report("redis-sentinel", f"{counted}; {reasons}", fix))
    known = [answer for answer in answers.values() if not isinstance(answer, str)]
    refused = [str(agreed) for _, agreed in known if isinstance(agreed, Exception)]
    if quorum := next((why for why in refused if why.startswith("NOQUORUM")), ""):
        fix = "start the missing sentinels; a majority of all must reach each other"
        found.append(problem("redis-sentinel", f"the sentinels cannot promote a replica: {quorum}", fix))
    elif refused:
        what = f"whether the sentinels can promote a replica is unknown: {refused[0]}"
        found.append(warning("redis-sentinel", what, "`ACL SETUSER ... +sentinel|ckquorum` at each sentinel"))
    most = max((int(facts[b"num-other-sentinels"]) + 1 for facts, _ in known), default=ENOUGH)
    if most < ENOUGH:
        what = f"the group has {most} sentinels: when one fails, no replica is promoted"
        found.append(warning("redis-sentinel", what, f"run {ENOUGH} sentinels, on {ENOUGH} machines"))
    if len(answers) < most:
        what = f"redis.url names {len(answers)} of {most} sentinels: programs cannot ask the others"
        found.append(warning("redis-sentinel", what, "name all of them in ORC_REDIS__URL"))
    return found or [ok("redis-sentinel", f"{counted}, and can promote a replica")]


def _writes(context: CheckContext) -> list[DoctorFinding]:
    needed = context.config.get("min-replicas-to-write")
    if needed is None:
        return [ok("redis-sentinel", "min-replicas-to-write is unknown: CONFIG GET is not allowed")]
    if needed == "0":
        what = (
            "min-replicas-to-write 0: a master that is cut off from the sentinels and from its replicas goes on taking "
            "writes, and all of them are lost when the network is whole again"
        )
        fix = (
            "`redis-cli CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 2` at each server, and both lines in "
            "its redis.conf"
        )
        return [warning("redis-sentinel", what, fix)]
    replicas = context.info.replicas
    if replicas <= int(needed):
        what = f"min-replicas-to-write {needed} and {replicas} replicas: without one of them, no write is taken"
        return [warning("redis-sentinel", what, f"run {int(needed) + 1} replicas or more")]
    return [ok("redis-sentinel", f"min-replicas-to-write {needed}: a master that is cut off takes no writes")]

"""The shortest agent. Run it with `orc up my_agents:agent`, then `orc tasks submit greet -a name=Ada --wait`."""

from orchestrator import Agent, TaskContext

agent = Agent("greeter", concurrency=20)


@agent.skill
async def greet(ctx: TaskContext, name: str) -> str:
    """Greet a person."""
    ctx.log.info("greeting", name=name)
    return f"Hello, {name}! This was attempt {ctx.attempt}."

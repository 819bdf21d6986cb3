"""The pages, one module each. Importing this package declares them all."""

from orchestrator.dashboard.pages import agents, control, overview, queues, submit, task, tasks, workers

ALL = (overview, queues, agents, workers, tasks, task, submit, control)
"""The modules, in the order of the navigation."""

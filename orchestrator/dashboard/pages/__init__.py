"""The pages, one module each. Importing this package declares them all."""

from orchestrator.dashboard.pages import agents, control, overview, queues, task, tasks, workers

ALL = (overview, queues, agents, workers, tasks, task, control)
"""The modules, in the order of the navigation."""

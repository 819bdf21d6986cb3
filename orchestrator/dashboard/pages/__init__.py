"""The pages, one module each. Importing this package declares them all."""

from orchestrator.dashboard.pages import (
    agents,
    commands,
    control,
    overview,
    questions,
    queues,
    submit,
    task,
    task_tree,
    task_value,
    tasks,
    workers,
)

ALL = (overview, queues, agents, workers, tasks, task, task_tree, task_value, questions, submit, control, commands)
"""The modules, in the order of the navigation."""

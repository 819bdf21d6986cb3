"""The pages, one module each. Importing this package declares them all."""

from orchestrator.dashboard.pages import (
    agents,
    bulk,
    commands,
    control,
    dead,
    limits,
    overview,
    questions,
    queues,
    schedules,
    submit,
    task,
    task_tree,
    task_value,
    tasks,
    workers,
)

ALL = (
    overview,
    queues,
    agents,
    workers,
    tasks,
    task,
    task_tree,
    task_value,
    questions,
    dead,
    schedules,
    limits,
    submit,
    control,
    commands,
    bulk,
)
"""The modules, in the order of the navigation."""

"""Workspaces: the document, logs, sets, states, directives and events that the agents of a session share."""

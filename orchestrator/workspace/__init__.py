"""What agents of one session share: a document, logs, sets, states, directives, and events that tell of each change."""

"""The life of a task: values, script wrappers, inbox reads, read-only views."""

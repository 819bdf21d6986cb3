"""Schedules: tasks that are submitted at times of a calendar or at intervals. Who fires them is the supervisor."""

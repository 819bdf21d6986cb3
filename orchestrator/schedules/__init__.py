"""Schedules: submit tasks at cron times or at intervals. The supervisor fires them.

A *plan* is the definition of a schedule. Its *timing* computes the *fire times*. At a fire time the supervisor *fires*
the schedule: it submits the plan's task. It *skips* a fire time that leads to no task. An operator *triggers* a
schedule to submit its task at once, which changes no fire time.
"""

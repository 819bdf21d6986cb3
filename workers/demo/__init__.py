"""The demo: a team of agents that audits a tree of Python source. Copy it to start a team of your own.

    editor      audit ─┬─▶ scan            scanner    finds the files
                       ├─▶ survey … ─┐     scanner    hands out one batch of files each
                       │             └─▶ measure …    analyst     measures one file
                       ├─▶ link ───────▶ list_imports … analyst   reads imports; the linker finds the cycles
                       └─▶ review …        reviewer   remarks on the worst files, at its own pace
    audit joins what comes back into REPORT.md and report.html.

Each agent is one short module; what they know (`source`, `measure`, `imports`, `review`, `report`) is plain code that
needs no server.
"""

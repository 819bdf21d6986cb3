"""A team of agents that audits a tree of Python source. Copy it to start a team of your own.

    editor      audit ─┬─▶ scan            scanner    finds the files
                       ├─▶ survey … ─┐     scanner    submits one task per file of a batch
                       │             └─▶ measure …    analyst     measures one file
                       ├─▶ link ───────▶ list_imports … analyst   reads imports; the linker finds the cycles
                       └─▶ review …        reviewer   remarks on the worst files, under a rate limit
    audit joins the results into REPORT.md and report.html.

Each agent is one short module. The modules behind them (`source`, `measure`, `imports`, `review`, `report`) are plain
code that needs no server.
"""

"""The command line: `orc`, also installed as `orchestrator`."""

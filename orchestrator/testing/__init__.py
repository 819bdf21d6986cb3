"""The test kit: real servers, a proxy that injects faults, processes, waits. Product code never imports it."""

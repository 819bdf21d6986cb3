"""Traces tasks with OpenTelemetry where a program has configured a tracer provider."""

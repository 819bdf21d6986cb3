"""The only code that talks to Redis: keys, connections, scripts, the embedded server."""

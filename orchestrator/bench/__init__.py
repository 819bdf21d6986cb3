"""`orc bench`: measures this machine and a server with tasks that do nothing, in a pool of its own."""

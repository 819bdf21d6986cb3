"""Other task queues as measured systems, each with its own client and workers in its own environment.

A peer is an entry of `registry` and an `…_app` module, the only one that imports the peer. Apps and their imports run
under the peer's interpreter, where this project is not installed.
"""

"""Other task queues as measured systems, each with its own client and workers in an environment of its own.

A peer is an entry of `registry` that says how to drive it, and an `…_app` module, the only one that imports the peer.
Apps and what they import
run under the peer's interpreter, where nothing of ours is installed.
"""

"""The daemon: loops that know nothing of each other, wired in `daemon`."""

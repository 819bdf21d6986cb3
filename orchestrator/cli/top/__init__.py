"""Draws `orc top`: live lists of one pool on a terminal, with the common control commands. It needs the extra `top`."""

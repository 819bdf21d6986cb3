"""Control: what operators ask for, how it is signed, stored and announced, and what is active now."""

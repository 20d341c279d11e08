"""Records in, text and plain data out: what the commands print. Needs neither torch nor a solver."""

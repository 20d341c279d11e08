"""The commands, one module each. A module has one click command, named as the module is; `planner.cli` lists them."""

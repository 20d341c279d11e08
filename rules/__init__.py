"""The lint rules. `RULES` is written out by hand, so that importing one module shows every rule there is."""

RULES: tuple[object, ...] = ()

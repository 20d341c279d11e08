"""What a plan does, computed step by step. Never imports the solver: deciding and checking stay apart."""

"""Plans, estimates and lint over HTTP: an API and pages, a queue of solves on a database, and workers that solve.

Several workers, on one machine or many, share nothing but the database.
"""

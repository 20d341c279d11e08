"""What the service remembers: jobs, their results, and tokens; and the queue, on the same database."""

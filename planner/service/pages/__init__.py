"""The pages' templates and what they load. They are rendered by `planner.service.routes.pages`."""

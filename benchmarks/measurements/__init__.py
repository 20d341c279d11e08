"""Published measurements as rows that the closed form can be held against."""

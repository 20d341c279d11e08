"""The report as one HTML page that needs nothing else: no network, no fonts, no library."""

"""Measures what the machine at hand takes for the ops of a training step, as a device profile.

`probes` says what is called, `timing` times it in interleaved rounds, `curves` makes rates of times, and `machine` puts
them together with what the machine is.
"""

"""`planner devices` and `planner presets`: what comes with the planner."""

import click

from planner.commands.options import json_option
from planner.commands.output import print_json


@click.command()
@json_option
def devices(*, as_json: bool) -> None:
    """List the device profiles that come with the planner.

    \b
    Examples:
      planner devices
      planner devices --json
    """
    from planner.device import device_names, load_device
    from planner.reporting import catalogue

    profiles = [load_device(name) for name in device_names()]
    if as_json:
        print_json({"devices": [catalogue.device_document(profile) for profile in profiles]})
    else:
        click.echo(catalogue.devices_text(profiles))


@click.command()
@json_option
def presets(*, as_json: bool) -> None:
    """List the models whose configuration comes with the planner.

    \b
    Examples:
      planner presets
      planner presets --json
    """
    from planner.presets import load_preset, preset_names
    from planner.reporting import catalogue

    found = [load_preset(name) for name in preset_names()]
    if as_json:
        print_json({"presets": [catalogue.preset_document(preset) for preset in found]})
    else:
        click.echo(catalogue.presets_text(found))

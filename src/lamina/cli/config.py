"""`lamina config`: every setting, its value, and where it comes from."""

import json
from typing import Annotated

from lamina.cli.call import Call, Commands, Json, option, show_json
from lamina.cli.say import visible
from lamina.settings import Settings, load_settings, setting_names
from lamina.settings.environment import mask_passwords

COMMANDS = Commands("config")


@COMMANDS.single(shared=())
def config(call: Call, as_json: Json = False, channel: Annotated[str, option("channel")] = "cli") -> None:
    settings = load_settings(channel=channel)
    rows = {name: (_value(settings, name), settings.origin.get(name, "default")) for name in setting_names()}
    if call.lang_option:  # an option of the call wins, as everywhere
        rows["lang"] = (call.lang_option, "--lang")
    if as_json:
        show_json({name: {"value": value, "from": origin} for name, (value, origin) in rows.items()})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("setting", "value", "origin"):
        table.add_column(call.say(f"cli.col.{column}"), overflow="fold")
    for name, (value, origin) in rows.items():
        default = origin == "default"
        where = Text(call.say("cli.config.default"), style="dim") if default else Text(origin, style="green")
        table.add_row(name, Text(visible(json.dumps(value, ensure_ascii=False))), where)
    Console(highlight=False).print(table)


def _value(settings: Settings, name: str) -> object:
    """A setting as people may see it: keys are never shown."""
    value = getattr(settings, name)
    if name.endswith(("_key", "_token")):
        return "…" if value else ""
    if name == "store":
        from lamina.app.store_admin import hide_password

        return hide_password(value)
    if name == "shares":
        return {layer: [share.least, share.most] for layer, share in settings.shares.items()}
    return mask_passwords(value) if isinstance(value, str) else value

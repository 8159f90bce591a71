"""`lamina config`: every setting, its value, and where it came from."""

import json
from typing import Annotated

import typer

from lamina.cli.texts import escaped, visible
from lamina.settings import Settings, load_settings, setting_names


def add_config(app: typer.Typer, say: dict[str, str]) -> None:
    def config(
        context: typer.Context,
        as_json: Annotated[
            bool, typer.Option("--json", help=say["opt.as_json"], show_default=False, metavar="")
        ] = False,
        channel: Annotated[str, typer.Option(help=say["opt.channel"], show_default=False)] = "cli",
    ) -> None:
        settings = load_settings(channel=channel)
        rows = {name: (_value(settings, name), settings.origin.get(name, "default")) for name in setting_names()}
        if lang := context.parent and context.parent.params.get("lang"):  # an option of the call wins, as everywhere
            rows["lang"] = (lang, "--lang")
        if as_json:
            found = {name: {"value": value, "from": origin} for name, (value, origin) in rows.items()}
            print(escaped(json.dumps(found, ensure_ascii=False, indent=2)))
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for column in ("name", "value", "origin"):
            table.add_column(say[column], overflow="fold")
        for name, (value, origin) in rows.items():
            where = Text(say["default"], style="dim") if origin == "default" else Text(origin, style="green")
            table.add_row(name, Text(visible(json.dumps(value, ensure_ascii=False))), where)
        Console(highlight=False).print(table)

    app.command(help=say["config.help"])(config)


def _value(settings: Settings, name: str) -> object:
    """A setting as people may see it: keys are never shown."""
    value = getattr(settings, name)
    if name.endswith(("_key", "_token")):
        return "…" if value else ""
    if name == "shares":
        return {layer: [share.least, share.most] for layer, share in settings.shares.items()}
    return value

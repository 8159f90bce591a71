"""The numbered migrations, as SQL files: `<number>_<name>.<sqlite|postgres>.sql`. Never edited once released."""

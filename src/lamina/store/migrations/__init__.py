"""The numbered migrations, as SQL files: `<number>_<name>.<sqlite|postgres>.sql`, or `<number>_<name>.sql` where both
databases understand the same words. Never edited once released.
"""

"""The Telegram bot: the same engine as everywhere, within Telegram's limits. It never builds a prompt of its own."""

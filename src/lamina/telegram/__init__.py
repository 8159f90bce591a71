"""The Telegram bot: the same engine as everywhere, with Telegram's limits kept. It never builds a prompt of its own."""

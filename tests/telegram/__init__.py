"""Tests of the Telegram bot."""

"""The gateway: lamina over HTTP, for clients of OpenAI's and Anthropic's form, for its own page, and for scripts."""

"""The gateway: its API over real stores, and over real sockets."""

"""Tests of the gateway, over real sockets."""

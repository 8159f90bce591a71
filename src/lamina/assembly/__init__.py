"""HOW it is stacked: prompt, messages, tokens, window, ledger, receipt.

Pure: no I/O, no clock, no randomness, no `await`, nothing of ours but the ground.
"""

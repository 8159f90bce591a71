"""May this command run? `tokens` read it as bash does, `programs` lists what only reads, `policy` decides."""

"""What a command may reach: the confinement of the tool bash, where the system offers one."""

"""What goes into a prompt: instruction files and when they are injected, skills, templates, each layer's source."""

"""What is remembered of a user: facts, how they are found again, and summaries of sessions."""

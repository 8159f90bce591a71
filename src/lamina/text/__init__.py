"""What every package needs of text: characters, index terms, dates, JSON, and long texts in slices."""

"""What may vary: search-space files read into frozen values."""

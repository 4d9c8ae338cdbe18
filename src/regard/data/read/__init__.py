"""Files become texts, checked and counted."""

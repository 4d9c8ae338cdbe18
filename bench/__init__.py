"""How fast we are beside a peer: both in one process, in turns, on the same text."""

"""How scores over images become a summary of every prompt's ranking: in one piece, or by parts."""

"""Another host as a place for runs: submission from this side, and the side over there that carries out requests."""

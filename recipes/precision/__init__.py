"""What each precision level means, what carries it out where, and whether it is what ran. Standard library only."""

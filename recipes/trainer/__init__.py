"""What trainers share whatever their framework: the walk over a run's steps, and what it leaves behind."""

"""What a job runs in: container runtimes and images."""

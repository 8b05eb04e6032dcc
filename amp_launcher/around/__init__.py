"""Around a user's own script: counting its steps, an early verdict, stopping it, its logs."""

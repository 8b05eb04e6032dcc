"""The processes of a job: ranks, how they meet, their devices, and what they are limited to."""

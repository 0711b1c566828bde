"""leantrain inside other people's trainers. Each module needs its framework, and is imported by its own name only."""

"""What a person watches: tables for the terminal and metrics for dashboards."""

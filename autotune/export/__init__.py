"""What a study leaves behind: the Pareto front, the measurement table, the policy, the summary."""

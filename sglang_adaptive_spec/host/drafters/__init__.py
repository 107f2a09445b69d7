"""What drafts for the target: one module for each way, chosen by the algorithm underneath."""

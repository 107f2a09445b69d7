"""What operators use: requests to a running server, and the verbs explain, report and watch."""

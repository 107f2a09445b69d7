"""What the target accepts, learned from verified drafts."""

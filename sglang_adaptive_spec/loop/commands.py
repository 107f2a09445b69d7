"""Commands that a running server obeys, by their keys in the host's /set_internal_state.

Their values are numbers, since the host lets nothing else through.
"""

PIN = "adaptive_spec_pin"  # place of a tier among those of /server_info; -1: adaptive
SHOW_MINUTES = "adaptive_spec_minutes"  # how many the next answers of /server_info have

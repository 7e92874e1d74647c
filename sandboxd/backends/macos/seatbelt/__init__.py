"""The Seatbelt profile: rules, patterns and text. Pure."""

"""The ground floor of asymptotix: what every theory stands on, and which knows no model."""

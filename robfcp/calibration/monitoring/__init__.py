"""After calibration: an alarm that may be looked at after every sample, and many sites' alarms."""

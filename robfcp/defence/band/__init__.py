"""The default defence of the first release: groups parted by a gap, and a few far out."""

from robfcp.defence.band.band import FALSE_ALARM, Band, outside_band

__all__ = ["FALSE_ALARM", "Band", "outside_band"]

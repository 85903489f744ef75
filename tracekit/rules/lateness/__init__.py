"""What late ranks have in common: who delayed whom, by how much, how sure.

Noise makes every rank late now and then. So a rank is held to what it adds beyond the typical
rank (the median of all), in time that the waiting rank could not use, and three scores are
looked at: its share of all own inflicted waiting, its own time over its peers', and (where replay
exists) the step without it. Two of those available must agree before a finding is worth more
than minor.
"""

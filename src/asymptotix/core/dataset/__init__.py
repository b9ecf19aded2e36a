"""The dataset of a result: assembly from outcomes, labels of indices, selection, provenance, files, checksums."""

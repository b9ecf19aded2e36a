"""The dataset behind a result: assembly from outcomes, labels of rows, selection, provenance, files, checksums."""

"""The claims, one file each, to be read as small papers; their order is in `regard.lab.catalogue`."""

"""Models of toolkits that are no longer developed: fairseq, OpenNMT-py, Joey NMT, Marian. One literal table each."""

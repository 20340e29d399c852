"""The comparability gate: rules that say whether a mismatch number of this run means anything at all."""

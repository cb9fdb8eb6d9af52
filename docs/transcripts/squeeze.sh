needs perl
run "strandline squeeze --kind address_space -- perl -e '@a=(1)x1e6'"

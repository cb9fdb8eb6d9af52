needs perl
run "strandline compare --repeat 5 'perl -e \"@a = (1) x 1e6\"' 'perl -e \"@a = (1) x 2e6\"'"

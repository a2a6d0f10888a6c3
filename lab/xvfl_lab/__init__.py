"""xvfl-lab: experiments, benchmarks and data sets of xvfl."""

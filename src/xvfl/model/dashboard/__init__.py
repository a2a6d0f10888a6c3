"""A web page that shows runs: static files, and a server that reads run folders."""

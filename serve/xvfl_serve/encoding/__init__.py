"""From the cells of tables and images to numbers, and back; numpy alone.

Both sides use it: training on whole columns (`xvfl.data`), serving on the rows of a request. The
functions of one cell are the reference; array functions are faster and give the same numbers.
"""

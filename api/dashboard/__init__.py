"""What operators watch: one page, and the route that it needs beside those that are there."""

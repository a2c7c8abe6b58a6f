"""Results in other forms: text for a terminal, HTML, JUnit, CSV, and what Gradescope and GitHub read."""

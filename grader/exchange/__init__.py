"""What goes out to learners and what comes back: bundles, collected repositories, Gradescope."""

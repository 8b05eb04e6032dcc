"""What training libraries take as their own: precision plugins and callbacks, a file for each, by public seams."""

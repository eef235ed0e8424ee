"""Rankings of images by prompts and their summaries, in one piece or by parts."""

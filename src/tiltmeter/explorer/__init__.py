"""Explorer: a local web page that ranks images by a typed prompt, compared with chance."""

"""VLStereoSet: choice between stereotypical, anti-stereotypical and unrelated captions."""

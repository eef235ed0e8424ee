"""Files that users supply: specs, tables, images, and places such as s3://."""

"""The file format of recordings: nobody else knows a key or a file name."""

"""What a comparison found, as files for people: tables, a page, advice."""

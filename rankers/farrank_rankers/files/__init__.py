"""What lies on disk: models of several origins, found, told apart, read and written."""

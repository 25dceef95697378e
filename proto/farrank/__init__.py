"""The wire of Farrank: versioned protobuf packages, compiled when the project is built."""

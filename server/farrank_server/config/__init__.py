"""The configuration of a server: its tree (`schema`), and how it is built (`server_config`)."""

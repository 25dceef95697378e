"""How fast a server answers under which load, and the highest load at which it keeps an objective."""

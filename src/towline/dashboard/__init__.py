"""The dashboard: pages for people, made on the server, over the functions that the API has."""

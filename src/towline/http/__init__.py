"""The http room has what every route needs: API keys, problems, request bodies and OpenAPI.

The routes themselves stand in the rooms of their capability, as `http.py`.
"""

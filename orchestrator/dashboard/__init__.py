"""The web dashboard: pages that the server renders from `orchestrator.views`, and control commands as forms.

It keeps no state: any number of copies agree, because each reads everything from Redis. Starlette, uvicorn and Jinja2
are the extra `dashboard`.
"""

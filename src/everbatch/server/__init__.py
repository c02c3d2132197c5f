"""OpenAI-compatible HTTP over one engine: create_app (app.py), bind_socket and serve (run.py).

One request's way: routes.py reads the body (http_body.py, protocol.py) and encodes the prompt;
answer.py submits it through the bridge (bridge.py, inbox.py); generation.py turns tokens into text;
choices.py turns text into JSON, which goes to the client through a channel (channel.py).
"""

"""A small OpenID provider for proofs that need one person and no browser: discovery, keys, codes, refresh tokens, logout tokens.

It signs with RS256 by the program `openssl`.
"""

import base64
import http.server
import json
import subprocess
import threading
import time
import urllib.parse


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class MiniProvider:
    """Answers at a port of this machine until the process ends."""

    def __init__(self, port, folder, client_id):
        self.issuer, self.client_id = f"http://127.0.0.1:{port}", client_id
        self.key = f"{folder}/provider-key.pem"
        subprocess.run(["openssl", "genrsa", "-out", self.key, "2048"], check=True, capture_output=True)
        shown = subprocess.run(["openssl", "rsa", "-in", self.key, "-noout", "-modulus"], check=True, capture_output=True, text=True)
        modulus = bytes.fromhex(shown.stdout.strip().removeprefix("Modulus="))
        self.keys = {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one", "n": encode(modulus), "e": "AQAB"}]}
        self.nonces, self.count = {}, 0
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), self.make_handler())
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def sign(self, claims, kind="JWT"):
        parts = ({"alg": "RS256", "kid": "one", "typ": kind}, claims)
        signed = ".".join(encode(json.dumps(part).encode()) for part in parts)
        signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", self.key], input=signed.encode(), check=True, capture_output=True).stdout
        return f"{signed}.{encode(signature)}"

    def claims(self, **more):
        now = int(time.time())
        return {"iss": self.issuer, "aud": self.client_id, "sub": "7", "sid": "s", "iat": now, "exp": now + 300} | more

    def logout_token(self):
        self.count += 1
        event = {"http://schemas.openid.net/event/backchannel-logout": {}}
        return self.sign(self.claims(jti=f"logout-{self.count}", events=event), "logout+jwt")

    def log_in(self, address):
        """Logs the person in whom a browser brings. Gives where the browser goes back to."""
        query = {name: values[0] for name, values in urllib.parse.parse_qs(urllib.parse.urlsplit(address).query).items()}
        self.count += 1
        code = f"code-{self.count}"
        self.nonces[code] = query["nonce"]
        answer = urllib.parse.urlencode({"code": code, "state": query["state"], "iss": self.issuer})
        return f"{query['redirect_uri']}?{answer}"

    def answer(self, path, form):
        """The status and the answer to a request."""
        at = {name: f"{self.issuer}/{name}" for name in ("authorize", "token", "userinfo", "keys", "logout")}
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.issuer,
                "authorization_endpoint": at["authorize"],
                "token_endpoint": at["token"],
                "userinfo_endpoint": at["userinfo"],
                "jwks_uri": at["keys"],
                "end_session_endpoint": at["logout"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
                "backchannel_logout_supported": True,
            }
        if path == "/keys":
            return 200, self.keys
        if path == "/userinfo":
            return 200, {"sub": "7", "name": "Grace Hopper", "preferred_username": "grace", "groups": ["staff"]}
        if path == "/token":
            nonce = self.nonces.pop(form.get("code", [""])[0], None)
            if form["grant_type"] == ["authorization_code"] and nonce is None:
                return 400, {"error": "invalid_grant"}
            more = {} if nonce is None else {"nonce": nonce}
            tokens = {"access_token": "access", "refresh_token": "refresh", "token_type": "Bearer", "expires_in": 300}
            return 200, tokens | {"id_token": self.sign(self.claims(**more))}
        return 404, None

    def make_handler(self):
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def respond(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
                status, answer = provider.answer(urllib.parse.urlsplit(self.path).path, urllib.parse.parse_qs(body))
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            do_GET = do_POST = respond

        return Handler

// Serves dist with the headers of the server and passes /v1 on to an installation, streams included. Questions about the large task are
// answered by large-data.mjs.
//
//   node scripts/serve.mjs PORT INSTALLATION_URL
import { readFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { extname, join, normalize } from "node:path";
import { answer } from "./large-data.mjs";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/** Returns a server that listens on a port of the loopback address. */
export function serve(port, installation) {
  const target = new URL(installation);
  const server = createServer((incoming, response) => {
    const url = new URL(incoming.url, "http://localhost");
    if (url.pathname.startsWith("/v1/")) {
      const large = incoming.method === "GET" ? answer(url) : undefined;
      if (large !== undefined) {
        response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(large));
        return;
      }
      const { hostname, port: targetPort } = target;
      const options = {
        hostname,
        port: targetPort,
        method: incoming.method,
        path: incoming.url,
        headers: incoming.headers,
      };
      const outgoing = request(options, (reply) => {
        response.writeHead(reply.statusCode, reply.headers);
        response.flushHeaders();
        reply.pipe(response);
      });
      outgoing.on("error", () => response.destroy());
      response.on("close", () => outgoing.destroy());
      incoming.pipe(outgoing);
      return;
    }
    const file = /\.\w+$/.test(url.pathname) ? normalize(url.pathname) : "index.html";
    try {
      const body = readFileSync(join("dist", file));
      const type = TYPES[extname(file)] ?? "application/octet-stream";
      response.writeHead(200, { "content-type": type, "content-security-policy": POLICY }).end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  server.listen(port, "127.0.0.1");
  return server;
}

if (process.argv[1]?.endsWith("serve.mjs")) serve(Number(process.argv[2]), process.argv[3]);

// Pages of somebody else, served from another port, and under another site name.
import { createServer } from "node:http";

/** Serves pages by path; returns their addresses on the same site and on another one. */
export async function serveAttacker(pages) {
  const server = createServer((request, response) => {
    const page = pages[new URL(request.url, "http://attacker").pathname];
    response.writeHead(page === undefined ? 404 : 200, { "Content-Type": "text/html; charset=utf-8" });
    response.end(page ?? "");
  });
  await new Promise((resolve) => server.listen(0, resolve));
  const { port } = server.address();
  return {
    // The console is at 127.0.0.1: another port is the same site to a browser, another name is another site.
    origins: [`http://127.0.0.1:${port}`, `http://evil.localhost:${port}`],
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

// A real OpenID provider (oidc-provider) with a few people, groups, refresh tokens that are used once, key rotation and logout tokens.
// node provider.mjs PORT CONTROL_PORT CLIENT_SECRET_FILE REDIRECT_URI LOGOUT_URI AFTER_LOGOUT_URI
// The control port changes what the provider knows: people, keys, whether it answers.

import { generateKeyPairSync } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import Provider from "oidc-provider";

const [port, controlPort, secretFile, redirectUri, logoutUri, afterLogoutUri] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const secret = readFileSync(secretFile, "utf8").trim();

/** People by their subject. */
const people = new Map([
  ["ada", { name: "Ada Lovelace", email: "ada@example.com", groups: ["builders", "everybody"] }],
  ["bob", { name: "Bob Builder", email: "bob@example.com", groups: ["everybody"] }],
  ["carol", { name: "Carol Lead", email: "carol@example.com", groups: ["leads"] }],
  ["dora", { name: "Dora Directory", email: "dora@example.com", groups: [] }],
]);
/** Endpoints that fail, by path, with a status and an error code. */
const failures = new Map();
let isAvailable = true;
let keyNumber = 0;
const keys = [];

function addKey() {
  keyNumber += 1;
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  // The old key is gone at once: whoever still has it in a cache does not know the new one.
  keys.splice(0, keys.length, { ...privateKey.export({ format: "jwk" }), kid: `key-${keyNumber}`, use: "sig", alg: "RS256" });
}

/** What the provider remembers. It outlives a rotation of its keys, for which the provider is made anew. */
const store = new Map();

class Adapter {
  constructor(model) {
    this.model = model;
  }

  key(id) {
    return `${this.model} ${id}`;
  }

  async upsert(id, payload) {
    store.set(this.key(id), payload);
    if (payload.uid) store.set(`uid ${payload.uid}`, this.key(id));
  }

  async find(id) {
    return store.get(this.key(id));
  }

  async findByUid(uid) {
    return store.get(store.get(`uid ${uid}`));
  }

  async findByUserCode() {
    return undefined;
  }

  async consume(id) {
    const payload = store.get(this.key(id));
    if (payload) payload.consumed = Math.floor(Date.now() / 1000);
  }

  async destroy(id) {
    store.delete(this.key(id));
  }

  async revokeByGrantId(grantId) {
    for (const [key, payload] of store) if (payload?.grantId === grantId) store.delete(key);
  }
}

function makeProvider() {
  return new Provider(issuer, {
    adapter: Adapter,
    clients: [
      {
        client_id: "cynode",
        client_secret: secret,
        redirect_uris: [redirectUri],
        post_logout_redirect_uris: [afterLogoutUri],
        backchannel_logout_uri: logoutUri,
        backchannel_logout_session_required: true,
        grant_types: ["authorization_code", "refresh_token"],
        response_types: ["code"],
      },
    ],
    jwks: { keys },
    cookies: { keys: ["a key of the proof"] },
    scopes: ["openid", "offline_access", "profile", "email", "groups"],
    claims: {
      openid: ["sub", "sid"],
      profile: ["name", "preferred_username"],
      email: ["email", "email_verified"],
      groups: ["groups"],
    },
    features: { devInteractions: { enabled: false }, backchannelLogout: { enabled: true } },
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    rotateRefreshToken: true,
    // Removed people have no account: neither a login nor a refresh token works for them.
    findAccount: (_, subject) => {
      const person = people.get(subject);
      return person
        ? {
            accountId: subject,
            claims: () => ({ sub: subject, preferred_username: subject, email_verified: true, ...person }),
          }
        : undefined;
    },
    ttl: { AccessToken: 300, IdToken: 300, RefreshToken: 86400, Interaction: 600, Session: 86400, Grant: 86400 },
    // Its guard against private addresses would keep it from this machine.
    fetch: (url, { dispatcher: _, ...options }) => fetch(url, options),
  });
}

let provider;
let handle;
function startProvider() {
  addKey();
  provider = makeProvider();
  handle = provider.callback();
}
startProvider();

/** Answers a question of the provider: who logs in is in the query, and everything that is asked for is granted. */
async function answerInteraction(request, response) {
  const { uid, prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    const person = new URL(request.url, issuer).searchParams.get("person");
    if (!person) {
      response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ uid, prompt: "login" }));
      return;
    }
    await provider.interactionFinished(request, response, { login: { accountId: person } });
    return;
  }
  const grant = grantId
    ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope);
  const saved = await grant.save();
  await provider.interactionFinished(request, response, { consent: { grantId: saved } }, { mergeWithLastSubmission: true });
}

createServer((request, response) => {
  if (!isAvailable) {
    response.writeHead(503).end();
  } else if (failures.has(new URL(request.url, issuer).pathname)) {
    const { status, error } = failures.get(new URL(request.url, issuer).pathname);
    response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify({ error }));
  } else if (request.url.startsWith("/interaction/")) {
    answerInteraction(request, response).catch((error) => response.writeHead(500).end(String(error)));
  } else {
    handle(request, response);
  }
}).listen(Number(port), "127.0.0.1");

/** What the control port can do. */
const actions = {
  remove: ({ person }) => people.delete(person),
  groups: ({ person, groups }) => people.set(person, { ...people.get(person), groups }),
  rotate: () => startProvider(),
  available: ({ available }) => {
    isAvailable = available;
  },
  keys: () => keys.map((key) => key.kid),
  fail: ({ path, status, error }) => {
    failures.set(path, { status, error });
  },
  mend: () => failures.clear(),
};

createServer((request, response) => {
  let body = "";
  request.on("data", (part) => {
    body += part;
  });
  request.on("end", () => {
    const action = actions[request.url.slice(1)];
    const answer = action ? action(JSON.parse(body || "{}")) : null;
    response.writeHead(action ? 200 : 404, { "content-type": "application/json" });
    response.end(JSON.stringify(answer ?? null));
  });
}).listen(Number(controlPort), "127.0.0.1");

// A push service on this machine with one browser: it checks who signed a message (RFC 8292) and decrypts it (RFC 8291, RFC 8188).
import { createDecipheriv, createECDH, createPublicKey, hkdfSync, randomBytes, verify } from "node:crypto";
import { createServer } from "node:http";

const decode = (text) => Buffer.from(text, "base64url");
const derive = (salt, key, info, length) => Buffer.from(hkdfSync("sha256", key, salt, info, length));

/** Returns the claims of `vapid t=TOKEN, k=KEY`; throws if the signature is wrong. */
function verifyVapid(authorization) {
  const [, token, key] = authorization.match(/^vapid t=([\w.-]+), k=([\w-]+)$/);
  const [head, claims, signature] = token.split(".");
  const point = decode(key);
  const jwk = { kty: "EC", crv: "P-256", x: point.subarray(1, 33).toString("base64url"), y: point.subarray(33).toString("base64url") };
  const publicKey = { key: createPublicKey({ key: jwk, format: "jwk" }), dsaEncoding: "ieee-p1363" };
  if (!verify("sha256", Buffer.from(`${head}.${claims}`), publicKey, decode(signature))) throw new Error("the signature is wrong");
  return { ...JSON.parse(decode(claims)), key };
}

export class PushService {
  static async start() {
    const service = new PushService();
    service.server = createServer((request, response) => void service.take(request, response));
    await new Promise((resolve) => service.server.listen(0, "127.0.0.1", resolve));
    service.origin = `http://127.0.0.1:${service.server.address().port}`;
    return service;
  }

  constructor() {
    this.ecdh = createECDH("prime256v1");
    this.auth = randomBytes(16);
    this.name = randomBytes(8).toString("hex");
    this.publicKey = this.ecdh.generateKeys();
    this.messages = [];
  }

  /** The subscription, as a browser gives it to a page. */
  get subscription() {
    const keys = { p256dh: this.publicKey.toString("base64url"), auth: this.auth.toString("base64url") };
    return { endpoint: `${this.origin}/push/${this.name}`, expirationTime: null, keys };
  }

  decrypt(message) {
    const [salt, length] = [message.subarray(0, 16), message[20]];
    const sender = message.subarray(21, 21 + length);
    const record = message.subarray(21 + length);
    const info = Buffer.concat([Buffer.from("WebPush: info\0"), this.publicKey, sender]);
    const key = derive(this.auth, this.ecdh.computeSecret(sender), info, 32);
    const contentKey = derive(salt, key, "Content-Encoding: aes128gcm\0", 16);
    const decipher = createDecipheriv("aes-128-gcm", contentKey, derive(salt, key, "Content-Encoding: nonce\0", 12));
    decipher.setAuthTag(record.subarray(-16));
    const padded = Buffer.concat([decipher.update(record.subarray(0, -16)), decipher.final()]);
    return padded.subarray(0, padded.lastIndexOf(2)).toString();
  }

  async take(request, response) {
    const parts = [];
    for await (const part of request) parts.push(part);
    try {
      const claims = verifyVapid(request.headers.authorization);
      if (claims.aud !== this.origin) throw new Error(`the audience is ${claims.aud}`);
      this.messages.push({ claims, headers: request.headers, body: JSON.parse(this.decrypt(Buffer.concat(parts))) });
      response.writeHead(201).end();
    } catch (error) {
      response.writeHead(400).end(String(error));
    }
  }

  close() {
    this.server.close();
  }
}

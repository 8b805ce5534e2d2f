//! Secrets of every kind, generated at run time from a seed: no text in this file looks like a secret.

/// Deterministic numbers from a seed.
#[derive(Debug)]
pub struct Chance(u64);

/// Lower-case letters and digits.
pub const LOWER: &str = "abcdefghijklmnopqrstuvwxyz0123456789";
/// Upper-case letters and digits of Base32.
pub const UPPER: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// Hexadecimal digits.
pub const HEX: &str = "0123456789abcdef";
/// Letters and digits.
pub const ALNUM: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// Alphabet of URL-safe Base64.
pub const URL64: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// Alphabet of Base64.
pub const BASE64: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Decimal digits.
pub const DIGITS: &str = "0123456789";

impl Chance {
    /// Starts with a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % u64::try_from(end).unwrap()).unwrap()
    }

    /// Returns letters from a set.
    pub fn letters(&mut self, set: &str, count: usize) -> String {
        (0..count).map(|_| char::from(set.as_bytes()[self.below(set.len())])).collect()
    }

    /// Returns one of some values.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Returns every 12-letter fragment of a secret that is still in a text.
pub fn survivors<'a>(secret: &'a str, text: &str) -> Vec<&'a str> {
    let pieces = (0..secret.len()).filter_map(|at| secret.get(at..at + 12));
    pieces.filter(|piece| text.contains(piece)).collect()
}

/// A secret with its surrounding text.
#[derive(Clone, Debug)]
pub struct Planted {
    /// Kind of the secret.
    pub kind: &'static str,
    /// The text with the secret.
    pub text: String,
    /// The secret, which must not be visible.
    pub secret: String,
}

/// Generates a text with a secret, and the secret.
pub type Make = fn(&mut Chance) -> (String, String);

/// Returns a secret without surrounding text.
fn alone(secret: String) -> (String, String) {
    (secret.clone(), secret)
}

fn with(text: impl Fn(&str) -> String, secret: String) -> (String, String) {
    (text(&secret), secret)
}

/// Returns a PEM private key: lines of 64 letters between its markers.
fn pem(chance: &mut Chance, name: &str, lines: usize) -> (String, String) {
    let mut body: Vec<String> = (0..lines).map(|_| chance.letters(BASE64, 64)).collect();
    body.push(format!("{}==", chance.letters(BASE64, 22)));
    let (dashes, body) = ("-".repeat(5), body.join("\n"));
    let text = format!("{dashes}BEGIN {name}{dashes}\n{body}\n{dashes}END {name}{dashes}");
    (text, body)
}

/// Returns a JWT with a header, claims and a signature.
fn jwt(chance: &mut Chance, claims: &str) -> (String, String) {
    let part = |text: &str| data_encoding::BASE64URL_NOPAD.encode(text.as_bytes());
    let header = part(r#"{"alg":"RS256","typ":"JWT"}"#);
    let claims = part(&format!(r#"{{"sub":"{}",{claims}}}"#, chance.letters(ALNUM, 12)));
    alone(format!("{header}.{claims}.{}", chance.letters(URL64, 86)))
}

/// The generator of each kind.
pub const KINDS: &[(&str, Make)] = &[
    ("aws_access_key_id", |c| alone(format!("AKIA{}", c.letters(UPPER, 16)))),
    ("aws_secret_key", |c| with(|s| format!("aws_secret_access_key = {s}"), c.letters(BASE64, 40))),
    ("aws_session_token", |c| with(|s| format!("AWS_SESSION_TOKEN={s}"), c.letters(BASE64, 200))),
    ("gcp_api_key", |c| alone(format!("AIza{}", c.letters(URL64, 35)))),
    ("google_oauth_secret", |c| alone(format!("GOCSPX-{}", c.letters(URL64, 28)))),
    ("google_oauth_token", |c| alone(format!("ya29.{}", c.letters(URL64, 120)))),
    ("azure_storage_key", |c| {
        with(
            |s| format!("DefaultEndpointsProtocol=https;AccountName=data;AccountKey={s}"),
            format!("{}==", c.letters(BASE64, 86)),
        )
    }),
    ("azure_sas", |c| {
        with(
            |s| format!("https://data.blob.core.windows.net/c?sv=2024-08-04&sp=r&sig={s}&se=2027"),
            format!("{}%3D", c.letters(ALNUM, 43)),
        )
    }),
    ("azure_client_secret", |c| {
        alone(format!("{}8Q~{}", c.letters(ALNUM, 3), c.letters(ALNUM, 34)))
    }),
    ("digitalocean_token", |c| alone(format!("dop_v1_{}", c.letters(HEX, 64)))),
    ("heroku_key", |c| {
        let part = |c: &mut Chance, count| c.letters(HEX, count);
        let parts = [8, 4, 4, 4, 12].map(|count| part(c, count));
        with(|s| format!("HEROKU_API_KEY={s}"), parts.join("-"))
    }),
    ("github_token", |c| {
        let prefix = *c.pick(&["ghp_", "gho_", "ghu_", "ghs_", "ghr_"]);
        alone(format!("{prefix}{}", c.letters(ALNUM, 36)))
    }),
    ("github_token", |c| {
        alone(format!("github_pat_{}_{}", c.letters(ALNUM, 22), c.letters(ALNUM, 59)))
    }),
    ("gitlab_token", |c| alone(format!("glpat-{}", c.letters(URL64, 20)))),
    ("npm_token", |c| alone(format!("npm_{}", c.letters(ALNUM, 36)))),
    ("pypi_token", |c| alone(format!("pypi-AgEIcHlwaS5vcmc{}", c.letters(URL64, 130)))),
    ("crates_io_token", |c| alone(format!("cio{}7", c.letters(ALNUM, 31)))),
    ("dockerhub_token", |c| alone(format!("dckr_pat_{}", c.letters(URL64, 27)))),
    ("terraform_token", |c| {
        alone(format!("{}.atlasv1.{}", c.letters(ALNUM, 14), c.letters(ALNUM, 67)))
    }),
    ("vault_token", |c| alone(format!("hvs.{}7", c.letters(URL64, 94)))),
    ("doppler_token", |c| alone(format!("dp.pt.{}", c.letters(ALNUM, 43)))),
    ("age_key", |c| alone(format!("AGE-SECRET-KEY-1{}", c.letters(UPPER, 58)))),
    ("anthropic_key", |c| alone(format!("sk-ant-api03-{}AA", c.letters(URL64, 93)))),
    ("openai_key", |c| {
        let prefix = *c.pick(&["sk-proj-", "sk-svcacct-"]);
        alone(format!("{prefix}{}", c.letters(URL64, 120)))
    }),
    ("openai_key", |c| alone(format!("sk-{}7", c.letters(ALNUM, 47)))),
    ("huggingface_token", |c| alone(format!("hf_{}", c.letters(ALNUM, 34)))),
    ("slack_token", |c| {
        let (a, b) = (c.letters(DIGITS, 12), c.letters(DIGITS, 13));
        alone(format!("xoxb-{a}-{b}-{}", c.letters(ALNUM, 24)))
    }),
    ("slack_webhook", |c| {
        with(
            |s| format!("https://hooks.slack.com/services/{s}"),
            format!("T{}/B{}/{}7", c.letters(UPPER, 8), c.letters(UPPER, 8), c.letters(ALNUM, 23)),
        )
    }),
    ("discord_webhook", |c| {
        let id = c.letters("123456789", 18);
        with(|s| format!("https://discord.com/api/webhooks/{id}/{s}"), c.letters(URL64, 68))
    }),
    ("discord_token", |c| {
        let id = data_encoding::BASE64_NOPAD.encode(c.letters("123456789", 18).as_bytes());
        alone(format!("{id}.{}.{}", c.letters(ALNUM, 6), c.letters(ALNUM, 38)))
    }),
    ("telegram_token", |c| {
        let id = c.letters("123456789", 10);
        with(|s| format!("{id}:{s}"), format!("AA{}", c.letters(URL64, 33)))
    }),
    ("sendgrid_key", |c| alone(format!("SG.{}7.{}", c.letters(URL64, 21), c.letters(URL64, 43)))),
    ("mailgun_key", |c| alone(format!("key-{}", c.letters(HEX, 32)))),
    ("mailchimp_key", |c| alone(format!("{}-us12", c.letters(HEX, 32)))),
    ("twilio_key", |c| alone(format!("SK{}", c.letters(HEX, 32)))),
    ("stripe_key", |c| {
        let prefix = *c.pick(&["sk_live_", "rk_live_", "sk_test_"]);
        alone(format!("{prefix}{}", c.letters(ALNUM, 24)))
    }),
    ("shopify_token", |c| alone(format!("shpat_{}", c.letters(HEX, 32)))),
    ("square_token", |c| alone(format!("sq0atp-{}", c.letters(URL64, 22)))),
    ("datadog_key", |c| with(|s| format!("DD_API_KEY: {s}"), c.letters(HEX, 32))),
    ("newrelic_key", |c| alone(format!("NRAK-{}", c.letters(UPPER, 27)))),
    ("newrelic_key", |c| alone(format!("{}NRAL", c.letters(HEX, 36)))),
    ("grafana_token", |c| alone(format!("glsa_{}_{}", c.letters(ALNUM, 32), c.letters(HEX, 8)))),
    ("sentry_token", |c| {
        alone(format!("sntrys_{}_{}", c.letters(ALNUM, 90), c.letters(ALNUM, 43)))
    }),
    ("linear_key", |c| alone(format!("lin_api_{}", c.letters(ALNUM, 40)))),
    ("notion_token", |c| alone(format!("ntn_{}", c.letters(ALNUM, 46)))),
    ("atlassian_token", |c| {
        alone(format!("ATATT3xFfGF0{}={}", c.letters(URL64, 170), c.letters(HEX, 8).to_uppercase()))
    }),
    ("asana_token", |c| {
        let (a, b) = (c.letters("123456789", 16), c.letters("123456789", 16));
        let secret = c.letters(HEX, 32);
        (format!("ASANA_TOKEN=2/{a}/{b}:{secret}"), secret)
    }),
    ("databricks_token", |c| alone(format!("dapi{}", c.letters(HEX, 32)))),
    ("cynode_token", |c| {
        let prefix = *c.pick(&["cyn_ses_", "cyn_key_", "cyn_boot_", "cyn_sbx_"]);
        alone(format!("{prefix}{}", c.letters(URL64, 49)))
    }),
    ("restate_key", |c| {
        let (a, b) = (c.letters(ALNUM, 22), c.letters(ALNUM, 44));
        with(|s| format!("key_{s}"), format!("{a}.{b}"))
    }),
    ("jwt", |c| jwt(c, r#""iss":"https://issuer.test""#)),
    ("kubernetes_token", |c| jwt(c, r#""iss":"kubernetes/serviceaccount""#)),
    ("private_key", |c| pem(c, "RSA PRIVATE KEY", 24)),
    ("private_key", |c| pem(c, "EC PRIVATE KEY", 2)),
    ("private_key", |c| pem(c, "OPENSSH PRIVATE KEY", 5)),
    ("private_key", |c| pem(c, "PRIVATE KEY", 25)),
    ("private_key", |c| pem(c, "PGP PRIVATE KEY BLOCK", 30)),
    ("private_key", |c| {
        let (text, _) = pem(c, "RSA PRIVATE KEY", 12);
        with(|s| format!("client-key-data: {s}"), data_encoding::BASE64.encode(text.as_bytes()))
    }),
    ("encoded_token", |c| {
        let before = "x".repeat(c.below(3));
        let blob = format!("{before}:ghp_{}:", c.letters(ALNUM, 36));
        let blob = data_encoding::BASE64.encode(blob.as_bytes());
        let secret = blob[8..].to_owned();
        (blob, secret)
    }),
    ("database_password", |c| {
        let scheme = *c.pick(&["postgres", "postgresql", "mysql", "mongodb+srv", "redis"]);
        with(
            |s| format!("{scheme}://app:{s}@db.internal:5432/app?sslmode=require"),
            c.letters(ALNUM, 20),
        )
    }),
    ("url_password", |c| {
        with(|s| format!("https://deploy:{s}@git.example.org/x.git"), c.letters(ALNUM, 20))
    }),
    ("authorization", |c| {
        with(|s| format!("Authorization: Bearer {s}"), format!("{}4", c.letters(URL64, 40)))
    }),
    ("basic_auth", |c| {
        let plain = format!("admin:{}", c.letters(ALNUM, 21));
        with(
            |s| format!("authorization: Basic {s}"),
            data_encoding::BASE64.encode(plain.as_bytes()),
        )
    }),
    ("netrc_password", |c| {
        with(|s| format!("machine git.test login ada password {s}"), c.letters(ALNUM, 16))
    }),
    ("secret", |c| with(|s| format!("password = \"{s}\""), format!("{}!3x", c.letters(ALNUM, 13)))),
    ("secret", |c| with(|s| format!("SMTP_PASSWORD={s}"), format!("{}5z", c.letters(ALNUM, 18)))),
    ("secret", |c| with(|s| format!("client_secret: '{s}'"), c.letters(HEX, 40))),
    ("secret", |c| {
        with(|s| format!("<apiToken>{s}</apiToken>"), format!("{}2", c.letters(LOWER, 31)))
    }),
];

/// Returns `count` secrets, each kind in turn.
pub fn secrets(seed: u64, count: usize) -> Vec<Planted> {
    let mut chance = Chance::new(seed);
    (0..count)
        .map(|number| {
            let (kind, make) = KINDS[number % KINDS.len()];
            let (text, secret) = make(&mut chance);
            Planted { kind, text, secret }
        })
        .collect()
}

/// The contexts in which a text with a secret arrives.
pub const SETTINGS: &[fn(&str) -> String] = &[
    |s| format!("Please deploy this with {s} and tell me when it is up. Thanks!"),
    |s| s.to_owned(),
    |s| format!("{s}\n"),
    |s| format!("héllo wörld → {s} ← ünïcode"),
    |s| format!("2026-11-15T10:00:00Z INFO worker{{id=3}}: started with {s}, took 3 ms"),
    |s| format!("\u{1b}[32m{s}\u{1b}[0m"),
    |s| format!("fn main() {{\n    connect(r#\"{s}\"#);\n}}\n"),
    |s| format!("# .env\nDEBUG=1\n{s}\nPORT=8080\n"),
    |s| format!("| name | value |\n|---|---|\n| it | `{s}` |\n"),
    |s| serde_json::json!({"role": "tool", "content": format!("exit 0\n{s}\ndone")}).to_string(),
    |s| {
        let inner =
            serde_json::json!({"command": "cat", "stdout": format!("a\n{s}\nb")}).to_string();
        serde_json::json!({"name": "shell", "arguments": inner}).to_string()
    },
    |s| {
        let inner = serde_json::json!([{"text": format!("\t{s}")}]).to_string();
        let middle = serde_json::json!({"content": inner}).to_string();
        serde_json::json!({"data": middle}).to_string()
    },
    |s| {
        let lines: Vec<_> = s.lines().map(|line| format!("+{line}")).collect();
        format!("@@ -1,2 +1,3 @@\n context\n{}\n context\n", lines.join("\n"))
    },
    |s| {
        let lines: Vec<_> = s.lines().map(|line| format!("-{line}")).collect();
        format!("@@ -1,2 +1,3 @@\n context\n{}\n context\n", lines.join("\n"))
    },
    |s| {
        let lines: Vec<_> =
            s.lines().enumerate().map(|(at, line)| format!("{:>6}\t{line}", at + 1)).collect();
        lines.join("\n")
    },
    |s| {
        let lines: Vec<_> = s.lines().map(|line| format!("> {line}")).collect();
        format!("Ada wrote:\n{}\n\nSo what?", lines.join("\n"))
    },
];

//! Ordinary text stays as it is.

use cynode_testkit::secrets::{BASE64, Chance, HEX};

use crate::redaction::support::redactor;

/// Code, settings and notes of the kind that agents read all day.
const ORDINARY: &[&str] = &[
    "let password = get_password();\nlet token: String = read_token(&path)?;",
    "pub struct Login { pub password: SecretString, pub token: Option<String>, api_key: ApiKey }",
    "password = os.environ[\"DB_PASSWORD\"]\ntoken = request.headers.get('Authorization')",
    "const token = await getToken({ audience: 'api', scope: 'read:all' });",
    "if (password !== confirmPassword) { throw new Error('passwords differ'); }",
    "token: ${{ secrets.GITHUB_TOKEN }}\npassword: ${DB_PASSWORD}\napi_key: {{ api_key }}",
    "export TOKEN=$(vault read -field=token secret/ci)\nPASSWORD=\"$1\"",
    "secretName: registry-credentials\nsecretKeyRef:\n  name: database-credentials\n  key: password",
    "tokens_per_second: 41.7\nmax_tokens = 4096\ntotal_tokens: 123456789",
    "token_url = \"https://login.example.org/oauth2/v2.0/token\"",
    "private_key_path = \"/etc/ssl/private/server-2024.pem\"",
    "Authorization: Bearer <token>\nAuthorization: Basic ${BASIC}\nauthorization: token YOUR_TOKEN",
    "The bearer authentication scheme and basic authentication are described in the manual.",
    "https://example.org:8443/a/b?c=d#e http://[::1]:8080/ ftp://files.example.org/pub",
    "postgres://user@localhost/app postgres://localhost:5432/app redis://127.0.0.1:6379/0",
    "git@github.com:rust-lang/rust.git ssh://git@example.org:2222/x.git mailto:ada@example.org",
    "550e8400-e29b-41d4-a716-446655440000 token_id: 550e8400-e29b-41d4-a716-446655440000",
    "task-sk-learn-based-classification-of-documents risk-assessment-and-mitigation-2024",
    "disk-usage-of-the-whole-machine mask-rcnn-resnet50-fpn-v2-coco desk-setup",
    "class=\"sk-toggleable__label-arrow sk-estimator-doc-link-2\"",
    "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUPEmp\n-----END CERTIFICATE-----",
    "if text.contains(\"-----BEGIN RSA PRIVATE KEY-----\") { return Err(Error::PrivateKey); }",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHnotakeyatallbutlongenoughtolook ada@host",
    "checksum = \"b0ad1a7d9a2bbd9ea2f7e0e1f2d5c2a3b0ad1a7d9a2bbd9ea2f7e0e1f2d5c2a3\"",
    "\"integrity\": \"sha512-v2kDEe57lecTulaDIuNTPy3Ry4gLGJ6Z1O3vE1krgXZNrsQ+LFTGHVxVjcXPs17LhbZVGedAJv8XZ1tvj5FvSg==\"",
    "commit 4f2c9a1be7d08c3355aa90cc1b7f6ee20d9a8b71\nAuthor: Ada <ada@example.org>",
    "key_press_event_handler key-value-store key_bindings.default primary_key = id",
    "pub const fn token_kind(self) -> TokenKind { TokenKind::Identifier }",
    "TokenStream2 tokenizer.json token2id Token![=] tokens.len() - 1",
    "SELECT password_hash FROM users WHERE token_hash = $1 AND secret_version = 12;",
    "npm_config_registry npm_package_name hf_hub_download hf_transfer pypi-publish cio_queue_depth",
    "compass: north, passes: 12, passed = true, passthrough: \"enabled\", bypass = 'never'",
    "password: str = Field(min_length=12)\nsecret_key_base: SecretKeyBase\ncredentials: 'include'",
    "!function(e,t){var n=e.token||\"\",r=t.password?t.password():void 0;return n+r}(window,a1b2);",
    "Basic usage and basic concepts; Bearer of bad news; login ada; machine learning",
    "AKIA is how the ids start; ghp_ and sk- are prefixes; eyJ is base64 of an opening brace",
    "let seed: Curve25519SeedBin = my_private_key.into();\nprivate_key_buffer: EcPrivateKeyRfc5915Der,",
    "StencilPassOp: D3D11_STENCIL_OP,\ntoken_length = kP384PointLen;\nSECRET_SIZE = EC_P256R1_BYTES",
    "secret_len = params.shared_secret_len*2; TrafficSecrets::Aes128Gcm { key, iv }",
    "default_max_tokens_for_model(\"claude-sonnet-4-20250514\") token_count(\"999r#u256\")",
    "pass -march=x86-64 to the compiler; passing |NID_hmacWithSHA256| will do",
    "const TokenMask: Flag = 251658240i32;\ngenerate_private_key: x25519_generate_private_key,",
    "[redacted:github_token#3f2a] password = \"[redacted:secret#00ff]\"",
];

#[test]
fn ordinary_code_settings_and_notes_stay_as_they_are() {
    let redactor = redactor(&[]);
    let changed: Vec<_> = ORDINARY
        .iter()
        .map(|text| (*text, redactor.redact_text(text).value))
        .filter(|(before, after)| before != after)
        .collect();
    assert_eq!(changed, []);
}

#[test]
fn hashes_and_pictures_stay_as_they_are() {
    let redactor = redactor(&[]);
    let mut chance = Chance::new(31);
    for length in [32, 40, 64, 128] {
        for _ in 0..200 {
            let text = format!("{} file-{length}.txt", chance.letters(HEX, length));
            assert_eq!(redactor.redact_text(&text).value, text);
        }
    }
    let picture = format!("data:image/png;base64,{}", chance.letters(BASE64, 1_000_000));
    assert_eq!(redactor.redact_text(&picture).value, picture);
}

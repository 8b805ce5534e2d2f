//! The last line of defence of every log: redacts secrets and e-mail addresses before a line leaves the process. The first line
//! of defence is that no code logs such values (`skip_all`, masked types).

use std::{borrow::Cow, io, sync::LazyLock};

use regex::bytes::{Captures, Regex, RegexBuilder};
use tracing_subscriber::fmt::MakeWriter;

/// The replacement of a secret.
pub(crate) const MASK: &str = "[redacted]";

static SECRET_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let patterns = [
        // CyNode's own tokens, and those of model providers
        r"\bcyn_[a-z]+_[A-Za-z0-9_-]{16,}",
        r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}",
        r"\b(?:ghp|gho|ghs|ghu|glpat|github_pat|xox[abprs]|AKIA|AIza)[A-Za-z0-9_-]{12,}",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        // a value after a word that announces a secret
        r"(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{6,}",
        r#"(?i)(?P<qname>pass(?:word|wd)?|secret|token|api[_-]?key|authorization)(?P<qsep>\\*["']?\s*[:=]\s*\\*["'])(?P<quoted>[^"'\\]+)"#,
        r#"(?i)(?P<name>pass(?:word|wd)?|secret|token|api[_-]?key|authorization)(?P<sep>\\*["']?\s*[:=]\s*\\*["']?)(?P<value>[^\s"'\\,;&}]{4,})"#,
        // a password in a URL
        r"(?P<scheme>\b[a-z][a-z0-9+.-]*://[^\s:/@]*):(?P<password>[^\s/@]+)@",
        // an e-mail address
        r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b",
        // argon2 hashes
        r"\$argon2id?\$[^\s\x22]+",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]|-[^-])*-----END [A-Z ]*PRIVATE KEY-----",
    ];
    // Secrets are ASCII. Without Unicode's tables the automaton is a tenth of the size, and each thread has its own.
    let built =
        RegexBuilder::new(&patterns.join("|")).unicode(false).dfa_size_limit(1 << 19).build();
    #[expect(clippy::expect_used, reason = "the pattern is a constant and a test compiles it")]
    built.expect("the pattern is well-formed")
});

/// Redacts secrets and e-mail addresses.
pub(crate) fn redact_secrets(text: &[u8]) -> Cow<'_, [u8]> {
    SECRET_PATTERN.replace_all(text, |found: &Captures<'_>| {
        let part = |name| found.name(name).map(|part| part.as_bytes());
        let named = part("qname").or(part("name"));
        match (named, part("qsep").or(part("sep")), part("scheme")) {
            (Some(name), Some(sep), _) => [name, sep, MASK.as_bytes()].concat(),
            (_, _, Some(scheme)) => [scheme, b":", MASK.as_bytes(), b"@"].concat(),
            _ => MASK.as_bytes().to_vec(),
        }
    })
}

/// Writes redacted log lines to `W`. The formatter passes one whole line at a time.
pub(crate) struct RedactingMakeWriter<M>(pub(crate) M);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for RedactingMakeWriter<M> {
    type Writer = RedactingWriter<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        RedactingWriter(self.0.make_writer())
    }
}

/// See [`RedactingMakeWriter`].
pub(crate) struct RedactingWriter<W>(W);

impl<W: io::Write> io::Write for RedactingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(&redact_secrets(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::MASK;

    fn redact(text: &str) -> String {
        String::from_utf8(super::redact_secrets(text.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn secrets_of_every_known_form_are_masked() {
        for secret in [
            "cyn_key_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRS",
            "sk-proj-abcdefghijklmnopqrstuvwx",
            "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
            "AKIAIOSFODNN7EXAMPLE",
            "ada@example.org",
        ] {
            let line = redact(&format!("{{\"message\":\"seen {secret} here\"}}"));
            let masked = format!("{{\"message\":\"seen {MASK} here\"}}");
            assert_eq!(line, masked, "S001-67, S001-68: {secret}");
        }
    }

    #[test]
    fn the_name_of_a_secret_stays_and_its_value_goes() {
        assert_eq!(redact("password=hunter2!"), format!("password={MASK}"));
        assert_eq!(redact(r#"password="correct horse""#), format!(r#"password="{MASK}""#));
        assert_eq!(redact(r#"{"api_key":"abcdef"}"#), format!(r#"{{"api_key":"{MASK}"}}"#));
        assert_eq!(redact(r#"{\"token\":\"abcdef\"}"#), format!(r#"{{\"token\":\"{MASK}\"}}"#));
        assert_eq!(
            redact("postgres://cynode:hunter2@db/cynode"),
            format!("postgres://cynode:{MASK}@db/cynode")
        );
    }

    #[test]
    fn ordinary_lines_stay_as_they_are() {
        for line in [
            r#"{"message":"answered","http.route":"/v1/tasks/{task}","duration_ms":3}"#,
            "listening on http://127.0.0.1:12080",
            "task tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f708 created at 2026-11-01T12:00:00Z",
        ] {
            assert_eq!(redact(line), line);
        }
    }

    proptest! {
        #[test]
        fn a_planted_token_never_survives(
            before in "[ -~]{0,40}",
            after in "[ ,;\"}][ -~]{0,40}",
            secret in "[A-Za-z0-9_-]{43}",
        ) {
            let token = format!("cyn_ses_{secret}");
            let line = redact(&format!("{before} {token}{after}"));
            prop_assert!(!line.contains(&token), "S001-68: {}", line);
        }
    }
}

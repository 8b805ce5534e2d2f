//! The last line of defence of every log and span: redacts secrets and e-mail addresses before they leave the process. The first
//! line of defence is that no code logs such values (`skip_all`, masked types).

use std::{borrow::Cow, io, sync::LazyLock, time::Duration};

use opentelemetry::{Array, KeyValue, StringValue, Value, trace::Status};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter},
};
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

/// Exports redacted spans by `E`.
#[derive(Debug)]
pub(crate) struct RedactingExporter<E>(pub(crate) E);

impl<E: SpanExporter> SpanExporter for RedactingExporter<E> {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        batch.iter_mut().for_each(redact_span);
        self.0.export(batch).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

/// Redacts every text of a span: its name, its status, and the attributes of it, its events and its links.
fn redact_span(span: &mut SpanData) {
    redact_text(&mut span.name);
    if let Status::Error { description } = &mut span.status {
        redact_text(description);
    }
    span.attributes.iter_mut().for_each(redact_attribute);
    for event in &mut span.events.events {
        redact_text(&mut event.name);
        event.attributes.iter_mut().for_each(redact_attribute);
    }
    for link in &mut span.links.links {
        link.attributes.iter_mut().for_each(redact_attribute);
    }
}

/// Returns the text without its secrets, if it has any.
fn without_secrets(text: &str) -> Option<String> {
    match redact_secrets(text.as_bytes()) {
        Cow::Owned(redacted) => Some(String::from_utf8_lossy(&redacted).into_owned()),
        Cow::Borrowed(_) => None,
    }
}

fn redact_text(text: &mut Cow<'static, str>) {
    if let Some(redacted) = without_secrets(text) {
        *text = redacted.into();
    }
}

/// Redacts the texts of an attribute. A value whose name announces a secret is masked as a whole.
fn redact_attribute(attribute: &mut KeyValue) {
    let announced = format!("{}=\"announced\"", attribute.key);
    let is_secret = without_secrets(&announced).is_some();
    let redact_value = |text: &mut StringValue| {
        if is_secret {
            *text = MASK.into();
        } else if let Some(redacted) = without_secrets(text.as_str()) {
            *text = redacted.into();
        }
    };
    match &mut attribute.value {
        Value::String(text) => redact_value(text),
        Value::Array(Array::String(texts)) => texts.iter_mut().for_each(redact_value),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::{
        Array, KeyValue, Value,
        trace::{Span as _, Status, Tracer as _, TracerProvider as _},
    };
    use opentelemetry_sdk::{
        error::OTelSdkResult,
        trace::{SdkTracerProvider, SpanData, SpanExporter},
    };
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

    /// Keeps what is exported.
    #[derive(Clone, Debug, Default)]
    struct KeepingExporter(std::sync::Arc<std::sync::Mutex<Vec<SpanData>>>);

    impl SpanExporter for KeepingExporter {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    #[test]
    fn a_planted_secret_leaves_in_no_part_of_a_span() {
        let secret = "cyn_ses_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRS";
        let exporter = KeepingExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(super::RedactingExporter(exporter.clone()))
            .build();
        let mut span = provider.tracer("test").start(format!("named {secret}"));
        span.set_attribute(KeyValue::new("seen", format!("x {secret} y")));
        span.set_attribute(KeyValue::new("password", "hunter2 and \"zebra\""));
        let list = Value::Array(Array::String(vec![secret.into(), "ada@example.org".into()]));
        span.set_attribute(KeyValue::new("list", list));
        span.set_attribute(KeyValue::new("http.route", "/v1/tasks/{task}"));
        span.add_event(secret, vec![KeyValue::new("error", format!("token={secret}"))]);
        span.set_status(Status::error(format!("postgres://cynode:hunter2@db: {secret}")));
        span.end();
        provider.shutdown().unwrap();
        let exported = format!("{:?}", exporter.0.lock().unwrap());
        for lost in [secret, "hunter2", "zebra", "ada@example.org"] {
            assert!(!exported.contains(lost), "{lost}: {exported}");
        }
        assert!(exported.contains(MASK) && exported.contains("/v1/tasks/{task}"), "{exported}");
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

//! The page behind an answer link of a notification. It has no script and no cookie: the link is the only credential,
//! and
//! viewing the page changes nothing.

use std::sync::LazyLock;

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Response},
};
use cynode_app::notifications::{
    QuestionRef,
    answer_links::{self, AnswerPage, LinkAnswer, LinkError},
};
use data_encoding::BASE64;
use sha2::{Digest, Sha256};
use url::form_urlencoded;

use crate::{AppState, extract::Path};

const PAGE_STYLE: &str = include_str!("../../assets/answer.css");

/// Content security policy: nothing is loaded, nothing runs, and the form can only be sent to this server. The style is
/// allowed by its digest.
static PAGE_SECURITY_POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let digest = BASE64.encode(&Sha256::digest(PAGE_STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    );
    HeaderValue::from_str(&policy).ok()
});

/// Shows the question of an answer link. Nothing changes before the form is sent.
#[utoipa::path(get, path = "/answer/{token}", tag = "notifications", params(("token" = String, Path)),
    responses((status = OK, content_type = "text/html")))]
pub(crate) async fn look(State(state): State<AppState>, Path(token): Path<String>) -> Response {
    match answer_links::load_answer_page(&state.app, &token).await {
        Ok(sheet) => render_page(StatusCode::OK, &sheet.question.title, &render_form(&sheet)),
        Err(refused) => render_refusal(&refused),
    }
}

/// Answers the question of an answer link. A link works once.
#[utoipa::path(post, path = "/answer/{token}", tag = "notifications", params(("token" = String, Path)),
    request_body(content = String, content_type = "application/x-www-form-urlencoded"),
    responses((status = OK, content_type = "text/html")))]
pub(crate) async fn answer(
    State(state): State<AppState>,
    Path(token): Path<String>,
    body: Bytes,
) -> Response {
    let Some(said) = parse_answer_form(&body) else {
        return render_refusal(&LinkError::NoAnswer("the form has no answer in it".into()));
    };
    let done = match said {
        LinkAnswer::Yes => "You said yes.",
        LinkAnswer::No(_) => "You said no.",
        LinkAnswer::Words(_) => "Your answer was passed on.",
    };
    match answer_links::answer_link(&state.app, &token, said).await {
        Ok(()) => {
            let text = format!(
                "<h1>Thank you</h1><p>{done} This link works no more; you can close the page.</p>"
            );
            render_page(StatusCode::OK, "Thank you", &text)
        }
        Err(refused) => render_refusal(&refused),
    }
}

/// Parses the form.
fn parse_answer_form(body: &[u8]) -> Option<LinkAnswer> {
    let (mut decision, mut text) = (None, None);
    for (name, value) in form_urlencoded::parse(body) {
        let value = value.trim().replace("\r\n", "\n");
        match &*name {
            "decision" => decision = Some(value),
            "text" if !value.is_empty() => text = Some(value),
            _ => {}
        }
    }
    match decision.as_deref() {
        Some("approve") => Some(LinkAnswer::Yes),
        Some("refuse") => Some(LinkAnswer::No(text)),
        Some("answer") => text.map(LinkAnswer::Words),
        Some(_) | None => None,
    }
}

/// Escapes text for HTML.
fn escape_html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

fn render_form(sheet: &AnswerPage) -> String {
    let question = &sheet.question;
    let around = &question.circumstances;
    let row = |name: &str, value: &str| format!("<dt>{name}</dt><dd>{}</dd>", escape_html(value));
    let rows = [
        Some(row("Asked by", &around.who)),
        around.task.as_deref().map(|task| row("Task", task)),
        around.project.as_deref().map(|project| row("Project", project)),
        Some(row("Spent so far", &around.render_spending())),
        Some(row("You are", &sheet.person)),
    ];
    let fields = match question.asked {
        QuestionRef::Approval(_) => {
            "<button name=decision value=approve>Approve</button>\
             <button name=decision value=refuse class=no>Refuse</button>"
        }
        QuestionRef::Plan(_) => {
            "<label for=text>What should be different, if you refuse</label>\
             <textarea id=text name=text rows=3 maxlength=4000></textarea>\
             <button name=decision value=approve>Approve</button>\
             <button name=decision value=refuse class=no>Refuse</button>"
        }
        QuestionRef::Answer(_) => {
            "<label for=text>Your answer</label>\
             <textarea id=text name=text rows=5 maxlength=4000 required></textarea>\
             <button name=decision value=answer>Answer</button>"
        }
    };
    format!(
        "<h1>{}</h1><pre>{}</pre><dl>{}</dl><form method=post>{fields}</form>\
         <p>This link is yours alone and works once.</p>",
        escape_html(&question.title),
        escape_html(&question.exact),
        rows.into_iter().flatten().collect::<String>(),
    )
}

fn render_refusal(refused: &LinkError) -> Response {
    let status = match refused {
        LinkError::Forged => StatusCode::NOT_FOUND,
        LinkError::Expired | LinkError::Used => StatusCode::GONE,
        LinkError::Answered => StatusCode::CONFLICT,
        LinkError::NotYours => StatusCode::FORBIDDEN,
        LinkError::NoAnswer(_) => StatusCode::UNPROCESSABLE_ENTITY,
        LinkError::Failed(cynode_app::Error::Unavailable(_)) => StatusCode::SERVICE_UNAVAILABLE,
        LinkError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    if let LinkError::Failed(error) = refused {
        let error = cynode_core::error_chain::format_error_chain(error);
        tracing::error!(event = "answer_link.failed", error, "an answer link could not be handled");
    }
    let next = match refused {
        LinkError::NoAnswer(_) => "Go back and try again; nothing has happened.",
        LinkError::Failed(_) => "Try again in a moment; nothing has happened.",
        LinkError::Forged
        | LinkError::Expired
        | LinkError::Used
        | LinkError::Answered
        | LinkError::NotYours => "Nothing has happened.",
    };
    let told = escape_html(&refused.to_string());
    render_page(status, "Not done", &format!("<h1>Not done</h1><p>{told}. {next}</p>"))
}

fn render_page(status: StatusCode, title: &str, body: &str) -> Response {
    let html = format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width, initial-scale=1\"><meta name=robots content=noindex>\
         <title>{}</title><style>{PAGE_STYLE}</style></head><body><main>{body}</main></body></html>",
        escape_html(title),
    );
    let mut headers = HeaderMap::new();
    // The page is never served without its policy.
    let Some(policy) = PAGE_SECURITY_POLICY.clone() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    (status, headers, Html(html)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_says_yes_no_or_something_and_nothing_else() {
        let words = |text: &str| parse_answer_form(text.as_bytes());
        assert_eq!(words("decision=approve"), Some(LinkAnswer::Yes));
        assert_eq!(words("decision=refuse&text="), Some(LinkAnswer::No(None)));
        assert_eq!(
            words("text=a%0D%0Ab&decision=refuse"),
            Some(LinkAnswer::No(Some("a\nb".into())))
        );
        assert_eq!(
            words("decision=answer&text=blue+%26+green"),
            Some(LinkAnswer::Words("blue & green".into()))
        );
        for nothing in ["", "decision=answer&text=+", "decision=yes", "text=x", "Decision=approve"]
        {
            assert_eq!(words(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn text_cannot_become_markup() {
        let text = "</pre><script>alert(\"1\")</script>&'";
        assert_eq!(
            escape_html(text),
            "&lt;/pre&gt;&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#39;"
        );
    }
}

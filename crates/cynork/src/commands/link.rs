//! `cynork link`: the question behind the answer link of a notification, for people who read notifications in a terminal.
//!
//! The link is the only credential, and the request goes to the host in the link: no session token is sent.

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use url::{Url, form_urlencoded};

use crate::{
    client::{ApiClient, ApiRequest},
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::escape_invisible,
    input, operations,
    output::render_record,
    page::{text_between, unescape_html},
    terminal::TextStyle,
};

#[derive(Subcommand)]
pub(crate) enum LinkCommand {
    /// Show the question behind a link, without answering it.
    #[command(after_help = "Example: cynork link show https://cynode.example/answer/TOKEN")]
    Show {
        /// Link of a notification.
        link: String,
    },
    /// Answer the question behind a link; works once.
    #[command(
        after_help = "Example: cynork link answer https://cynode.example/answer/TOKEN --approve"
    )]
    Answer(LinkAnswerArgs),
}

#[derive(Args)]
pub(crate) struct LinkAnswerArgs {
    /// Link of a notification.
    link: String,
    /// Approve.
    #[arg(long, conflicts_with_all = ["refuse", "message"])]
    approve: bool,
    /// Refuse; --message gives the reason.
    #[arg(long)]
    refuse: bool,
    /// Answer to the question; `@FILE` reads a file, `@-` reads standard input.
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
}

/// The content of an answer page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct AnswerPageContent {
    /// Subject of the question.
    title: String,
    /// The exact content of the decision.
    exact: String,
    /// Requester, task and its cost so far.
    about: Vec<(String, String)>,
    /// Possible answers: `approve`, `refuse`, `answer`.
    answers: Vec<String>,
}

/// The confirmation of an answer.
#[derive(Serialize)]
struct AnswerReceipt {
    said: &'static str,
}

impl LinkCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::Show { link } => show_answer_page(context, &link).await,
            Self::Answer(answer) => answer.run(context).await,
        }
    }
}

/// Parses a link into a client of its host and its token.
fn parse_answer_link(context: &CliContext, link: &str) -> Result<(ApiClient, String)> {
    let wrong = || {
        CliError::new(CliErrorKind::Usage, "this is not a link of a notification")
            .with_fix("copy it whole; it ends like /answer/…")
    };
    if !link.contains('/') {
        return Ok((context.client.for_base_url(context.client.base_url())?, link.to_owned()));
    }
    let url = Url::parse(link).map_err(|_| wrong())?;
    let (before, token) = url.path().rsplit_once("/answer/").ok_or_else(wrong)?;
    if token.is_empty() || token.contains('/') || !matches!(url.scheme(), "http" | "https") {
        return Err(wrong());
    }
    let base = url.origin().ascii_serialization() + before;
    Ok((context.client.for_base_url(&base)?, token.to_owned()))
}

async fn show_answer_page(context: &CliContext, link: &str) -> Result<()> {
    let (client, token) = parse_answer_link(context, link)?;
    let read = parse_answer_page(&escape_invisible(
        &client.fetch_text(&ApiRequest::with_path_params(operations::LOOK, [token])).await?,
    ));
    context.out.print_answer(
        &read,
        |page| vec![page.title.clone()],
        |page, paint| {
            let mut sides = vec![
                ("asked", paint.apply_style(TextStyle::Bold, &page.title)),
                ("exactly", page.exact.clone()),
            ];
            let about: Vec<String> =
                page.about.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            sides.push(("about", about.join("\n")));
            sides.push(("answers", page.answers.join(", ")));
            render_record(paint, &sides)
        },
    )
}

impl LinkAnswerArgs {
    async fn run(self, context: &CliContext) -> Result<()> {
        let message = self.message.as_deref().map(input::read_text_argument).transpose()?;
        let (decision, said, words) = match (self.approve, self.refuse, &message) {
            (true, ..) => ("approve", "yes", "you said yes"),
            (_, true, _) => ("refuse", "no", "you said no"),
            (false, false, Some(_)) => ("answer", "words", "your answer was passed on"),
            (false, false, None) => {
                return Err(CliError::new(CliErrorKind::Usage, "what do you say?").with_fix(
                    "say it with --approve, --refuse or --message TEXT; see `cynork link show`",
                ));
            }
        };
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("decision", decision);
        if let Some(text) = &message {
            form.append_pair("text", text);
        }
        let (client, token) = parse_answer_link(context, &self.link)?;
        let call = ApiRequest::with_path_params(operations::ANSWER, [token])
            .with_file_body(form.finish().into_bytes(), "application/x-www-form-urlencoded");
        client.fetch_text(&call).await?;
        context.out.print_success(&AnswerReceipt { said }, words)
    }
}

/// Parses an answer page.
fn parse_answer_page(html: &str) -> AnswerPageContent {
    let text =
        |from: &str, to: &str| text_between(html, from, to).map(unescape_html).unwrap_or_default();
    let names = html.split("<dt>").skip(1).filter_map(|part| {
        let name = part.split("</dt>").next()?;
        Some((unescape_html(name), unescape_html(text_between(part, "<dd>", "</dd>")?)))
    });
    let answers = ["approve", "refuse", "answer"];
    let answers = answers.into_iter().filter(|it| html.contains(&format!("value={it}")));
    AnswerPageContent {
        title: text("<h1>", "</h1>"),
        exact: text("<pre>", "</pre>"),
        about: names.collect(),
        answers: answers.map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_it_was_meant() {
        let html = "<h1>May it?</h1><pre>echo &lt;a&gt; &amp;amp;</pre><dl><dt>Asked by</dt><dd>Ada &#39;A&#39;</dd>\
            <dt>Task</dt><dd>x</dd></dl><form method=post><button name=decision value=approve>Approve</button>\
            <button name=decision value=refuse class=no>Refuse</button></form>";
        let wanted = AnswerPageContent {
            title: "May it?".into(),
            exact: "echo <a> &amp;".into(),
            about: vec![("Asked by".into(), "Ada 'A'".into()), ("Task".into(), "x".into())],
            answers: vec!["approve".into(), "refuse".into()],
        };
        assert_eq!(parse_answer_page(html), wanted);
    }
}

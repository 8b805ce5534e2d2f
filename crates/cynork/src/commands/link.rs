//! `cynork link`: the page behind a link of a notice, for whoever reads notices in a terminal.
//!
//! The link is all that is needed, and it is asked where it leads: no session goes with it.

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use url::{Url, form_urlencoded};

use crate::{
    client::{Call, Client},
    context::Context,
    failure::{Failure, Kind, Result},
    given,
    look::visible,
    operations,
    output::record,
    page::{inside, unescaped},
    terminal::Style,
};

#[derive(Subcommand)]
pub(crate) enum Link {
    /// Shows what a link asks. Nothing happens by looking.
    #[command(after_help = "Example: cynork link show https://cynode.example/answer/TOKEN")]
    Show {
        /// The link of a notice.
        link: String,
    },
    /// Answers what a link asks, once.
    #[command(
        after_help = "Example: cynork link answer https://cynode.example/answer/TOKEN --approve"
    )]
    Answer(Answer),
}

#[derive(Args)]
pub(crate) struct Answer {
    /// The link of a notice.
    link: String,
    /// Yes.
    #[arg(long, conflicts_with_all = ["refuse", "message"])]
    approve: bool,
    /// No; with --message, what should be different.
    #[arg(long)]
    refuse: bool,
    /// The answer to a question; `@FILE` takes it from a file, `@-` from standard input.
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
}

/// What is behind a link, read from its page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Page {
    /// What it is about.
    title: String,
    /// Exactly what is to be decided.
    exact: String,
    /// Who asks, for which task, what it has cost.
    about: Vec<(String, String)>,
    /// What can be answered: `approve`, `refuse`, `answer`.
    answers: Vec<String>,
}

/// What was said.
#[derive(Serialize)]
struct Said {
    said: &'static str,
}

impl Link {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::Show { link } => show(context, &link).await,
            Self::Answer(answer) => answer.run(context).await,
        }
    }
}

/// Where a link leads, and what is in it.
fn split(context: &Context, link: &str) -> Result<(Client, String)> {
    let wrong = || {
        Failure::new(Kind::Usage, "this is not a link of a notice")
            .fix("copy it whole; it ends like /answer/…")
    };
    if !link.contains('/') {
        return Ok((context.client.elsewhere(context.client.base())?, link.to_owned()));
    }
    let url = Url::parse(link).map_err(|_| wrong())?;
    let (before, token) = url.path().rsplit_once("/answer/").ok_or_else(wrong)?;
    if token.is_empty() || token.contains('/') || !matches!(url.scheme(), "http" | "https") {
        return Err(wrong());
    }
    let base = url.origin().ascii_serialization() + before;
    Ok((context.client.elsewhere(&base)?, token.to_owned()))
}

async fn show(context: &Context, link: &str) -> Result<()> {
    let (client, token) = split(context, link)?;
    let read = read(&visible(&client.text(&Call::to(operations::LOOK, [token])).await?));
    context.out.show(
        &read,
        |page| vec![page.title.clone()],
        |page, paint| {
            let mut sides = vec![
                ("asked", paint.dye(Style::Bold, &page.title)),
                ("exactly", page.exact.clone()),
            ];
            let about: Vec<String> =
                page.about.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            sides.push(("about", about.join("\n")));
            sides.push(("answers", page.answers.join(", ")));
            record(paint, &sides)
        },
    )
}

impl Answer {
    async fn run(self, context: &Context) -> Result<()> {
        let message = self.message.as_deref().map(given::words).transpose()?;
        let (decision, said, words) = match (self.approve, self.refuse, &message) {
            (true, ..) => ("approve", "yes", "you said yes"),
            (_, true, _) => ("refuse", "no", "you said no"),
            (false, false, Some(_)) => ("answer", "words", "your answer was passed on"),
            (false, false, None) => {
                return Err(Failure::new(Kind::Usage, "what do you say?").fix(
                    "say it with --approve, --refuse or --message TEXT; see `cynork link show`",
                ));
            }
        };
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("decision", decision);
        if let Some(text) = &message {
            form.append_pair("text", text);
        }
        let (client, token) = split(context, &self.link)?;
        let call = Call::to(operations::ANSWER, [token])
            .file(form.finish().into_bytes(), "application/x-www-form-urlencoded");
        client.text(&call).await?;
        context.out.done(&Said { said }, words)
    }
}

/// Reads a page.
fn read(html: &str) -> Page {
    let text = |from: &str, to: &str| inside(html, from, to).map(unescaped).unwrap_or_default();
    let names = html.split("<dt>").skip(1).filter_map(|part| {
        let name = part.split("</dt>").next()?;
        Some((unescaped(name), unescaped(inside(part, "<dd>", "</dd>")?)))
    });
    let answers = ["approve", "refuse", "answer"];
    let answers = answers.into_iter().filter(|it| html.contains(&format!("value={it}")));
    Page {
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
        let wanted = Page {
            title: "May it?".into(),
            exact: "echo <a> &amp;".into(),
            about: vec![("Asked by".into(), "Ada 'A'".into()), ("Task".into(), "x".into())],
            answers: vec!["approve".into(), "refuse".into()],
        };
        assert_eq!(read(html), wanted);
    }
}

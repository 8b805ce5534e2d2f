//! `cynork chat`: a conversation with the project manager.

use std::{
    io::{BufRead as _, IsTerminal as _, Read as _},
    path::Path,
};

use clap::{Args, Subcommand};
use cynode_core::workflow::handoffs::{ChatMessageState, ChatRole};
use cynode_wire::manager::handoffs::{ChatTurn, ThreadView};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    answers::PageArgs,
    client::{ApiClient, ApiRequest, ListResponse},
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::escape_invisible,
    input,
    names::ProjectSelector,
    operations,
    output::{
        CliOutput, CliOutputFormat, is_stdout_closed, print_line, print_stderr_line, write_stdout,
    },
    terminal::TextStyle,
};

/// The model id of the project manager.
pub(crate) const MANAGER_MODEL_ID: &str = "cynodeai.pm";

/// Chat with the project manager and stream the answer.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example: cynork chat --message \"What is everybody working on?\" --project web"
)]
pub(crate) struct ChatArgs {
    /// Message to send; `@FILE` reads a file, `@-` reads standard input. Without it, start an interactive conversation.
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    #[command(flatten)]
    place: ProjectSelector,
    /// Model to chat with.
    #[arg(long, default_value = MANAGER_MODEL_ID)]
    model: String,
    /// Profile that the project manager answers under; begins a conversation of its own.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    #[command(subcommand)]
    about: Option<ChatCommand>,
}

#[derive(Subcommand)]
pub(crate) enum ChatCommand {
    /// List your conversations with the project manager, newest first.
    #[command(after_help = "Example: cynork chat threads --limit 5")]
    Threads(PageArgs),
    /// Show the messages of a conversation, oldest first.
    #[command(after_help = "Example: cynork chat show thr_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Show {
        /// Thread id; defaults to the newest.
        thread: Option<String>,
    },
}

/// A complete answer.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ChatAnswer {
    model: String,
    content: String,
    finish_reason: Option<String>,
}

impl ChatArgs {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self.about {
            Some(ChatCommand::Threads(pages)) => return list_threads(context, &pages).await,
            Some(ChatCommand::Show { thread }) => return show_thread(context, thread).await,
            None => {}
        }
        // Without a project the preference `chat.default_project` decides, or there is only one.
        let named = context.resolve_project(self.place.project, Path::new("."));
        let project = context.optional_project_id(named.as_deref()).await?;
        let mut talk = CliChatSession {
            context,
            model: self.model,
            project,
            profile: self.profile,
            messages: Vec::new(),
        };
        match self.message {
            Some(message) => talk.ask_once(&input::read_text_argument(&message)?).await,
            None if context.is_interactive() => talk.run_conversation().await,
            None if !std::io::stdin().is_terminal() => {
                let mut question = String::new();
                std::io::stdin().read_to_string(&mut question).map_err(|error| {
                    CliError::invalid_input(format!("standard input cannot be read: {error}"))
                })?;
                talk.ask_once(question.trim()).await
            }
            None => Err(CliError::new(CliErrorKind::Usage, "what do you want to say?")
                .with_fix("say it with --message TEXT")),
        }
    }
}

async fn list_threads(context: &CliContext, pages: &PageArgs) -> Result<()> {
    let name = |it: &ThreadView| it.thread_id.to_string();
    context
        .show_list(
            &ApiRequest::for_operation(operations::LIST_THREADS),
            Some(pages),
            name,
            ["id", "about", "profile", "last word", "begun"],
            |it: &ThreadView, look| {
                [
                    it.thread_id.to_string(),
                    look.style_bold(&it.title),
                    it.profile.as_ref().map(ToString::to_string).unwrap_or_default(),
                    look.format_relative_time(it.updated_at),
                    look.format_relative_time(it.created_at),
                ]
            },
        )
        .await
}

async fn show_thread(context: &CliContext, thread: Option<String>) -> Result<()> {
    let thread = match thread {
        Some(thread) => thread,
        None => {
            let newest =
                ApiRequest::for_operation(operations::LIST_THREADS).with_query("limit", Some(1));
            let newest: ListResponse<ThreadView> = context.fetch_as(&newest).await?;
            let newest = newest.items.into_iter().next().map(|it| it.thread_id.to_string());
            newest.ok_or_else(|| {
                CliError::new(CliErrorKind::NotFound, "you have said nothing yet")
                    .with_fix("begin with `cynork chat`")
            })?
        }
    };
    let value = context
        .send_request(&ApiRequest::with_path_params(operations::LIST_MESSAGES, [thread]))
        .await?;
    context.show_answer(
        &value,
        |list: &ListResponse<ChatTurn>| {
            list.items.iter().map(|turn| turn.content.clone()).collect()
        },
        |list, look| {
            let turns = list.items.iter().map(|turn| {
                let who = if turn.role == ChatRole::User { "you" } else { turn.role.as_str() };
                let state = if turn.state == ChatMessageState::Whole {
                    String::new()
                } else {
                    format!(" ({})", look.style_state(turn.state.as_str()))
                };
                format!(
                    "{}{state}, {}\n{}",
                    look.style_bold(who),
                    look.style_dim(&look.format_relative_time(turn.at)),
                    turn.content
                )
            });
            turns.collect::<Vec<_>>().join("\n\n")
        },
    )
}

/// A conversation.
struct CliChatSession<'a> {
    context: &'a CliContext,
    model: String,
    project: Option<String>,
    profile: Option<String>,
    messages: Vec<Value>,
}

impl CliChatSession<'_> {
    /// Asks one question and prints its answer.
    async fn ask_once(&mut self, question: &str) -> Result<()> {
        let form = self.context.out.form;
        let answered = self.ask_question(question, form != CliOutputFormat::Json).await?;
        if form == CliOutputFormat::Json {
            return CliOutput::print_json(&answered);
        }
        Ok(())
    }

    /// Runs until the person ends the conversation.
    async fn run_conversation(&mut self) -> Result<()> {
        let paint = self.context.out.paint;
        print_stderr_line(
            &paint.apply_style(
                TextStyle::Dim,
                "Ctrl-C stops an answer, Ctrl-D ends the conversation.",
            ),
        );
        let mut lines = spawn_line_reader();
        loop {
            write_stdout(&paint.apply_style(TextStyle::Cyan, "you › "));
            if is_stdout_closed() {
                return Ok(());
            }
            let line = tokio::select! {
                line = lines.recv() => line,
                _ = tokio::signal::ctrl_c() => None,
            };
            let Some(line) = line else {
                print_line("");
                return Ok(());
            };
            if line.trim().is_empty() {
                continue;
            }
            write_stdout(&paint.apply_style(TextStyle::Green, "pm  › "));
            tokio::select! {
                answered = self.ask_question(line.trim(), true) => match answered {
                    Err(failure) if failure.kind == CliErrorKind::Refused => return Err(failure),
                    // The next question may succeed.
                    Err(failure) => self.context.out.print_error(&failure),
                    Ok(_) => {}
                },
                // Closing the connection cancels all work behind it.
                _ = tokio::signal::ctrl_c() => print_line(&paint.apply_style(TextStyle::Dim, " (stopped)")),
            }
        }
    }

    /// Asks a question, and optionally prints the answer as it streams. An incomplete answer is not added to the conversation:
    /// the next question is sent without it.
    async fn ask_question(&mut self, question: &str, shown: bool) -> Result<ChatAnswer> {
        let mut messages = self.messages.clone();
        messages.push(json!({ "role": "user", "content": question }));
        let call = self::build_completion_call(&self.model, &messages, self.project.as_deref());
        let call = match &self.profile {
            Some(profile) => call.with_header("X-CyNode-Profile", profile),
            None => call,
        };
        let answered = self.receive_answer(&call, shown).await?;
        messages.push(json!({ "role": "assistant", "content": answered.content }));
        self.messages = messages;
        Ok(answered)
    }

    async fn receive_answer(&self, call: &ApiRequest, shown: bool) -> Result<ChatAnswer> {
        let answered = stream_completion(&self.context.client, call, &self.model, |words| {
            if shown {
                write_stdout(&escape_invisible(words));
            }
        });
        let answered = answered.await;
        if shown {
            print_line("");
        }
        answered
    }
}

/// Builds the completion request of a conversation, optionally in a project.
pub(crate) fn build_completion_call(
    model: &str,
    messages: &[Value],
    project: Option<&str>,
) -> ApiRequest {
    let body = json!({ "model": model, "stream": true, "messages": messages });
    let call = ApiRequest::for_operation(operations::COMPLETIONS).with_json_body(&body);
    match project {
        Some(project) => call.with_header("OpenAI-Project", project),
        None => call,
    }
}

/// Sends that request and reports the text chunk by chunk. An answer that breaks off is an error.
pub(crate) async fn stream_completion(
    client: &ApiClient,
    call: &ApiRequest,
    model: &str,
    mut tell: impl FnMut(&str),
) -> Result<ChatAnswer> {
    let mut answered = ChatAnswer { model: model.to_owned(), ..ChatAnswer::default() };
    let mut events = client.open_event_stream(call).await?;
    while let Some(heard) = events.next().await {
        if heard.data == "[DONE]" {
            return Ok(answered);
        }
        tell(&answered.apply_event(&heard.data)?);
    }
    Err(CliError::new(CliErrorKind::Unreachable, "the answer broke off").with_fix("ask again"))
}

impl ChatAnswer {
    /// Applies one event of a stream. Returns its text.
    fn apply_event(&mut self, data: &str) -> Result<String> {
        let event: Value = serde_json::from_str(data).map_err(|error| {
            CliError::internal_error(format!("the answer cannot be read: {error}"))
        })?;
        if let Some(message) = event["error"]["message"].as_str() {
            return Err(CliError::new(CliErrorKind::Failed, message));
        }
        let choice = &event["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
        let words = choice["delta"]["content"].as_str().unwrap_or_default();
        self.content.push_str(words);
        Ok(words.to_owned())
    }
}

/// Returns the lines that a person types. A thread reads them, so that Ctrl-C is handled meanwhile; it ends with the program.
fn spawn_line_reader() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CliEnvironment, ConfigFile};

    #[tokio::test]
    async fn a_question_that_was_stopped_is_not_sent_along_with_the_next() {
        let place = tempfile::tempdir().unwrap();
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", silent.local_addr().unwrap());
        let environment = CliEnvironment::default();
        let context = CliContext {
            client: crate::client::ApiClient::new(&address).unwrap(),
            out: CliOutput::new(CliOutputFormat::Json, false),
            file: ConfigFile::load_config(Some(place.path().join("none")), &environment).unwrap(),
            environment,
            yes: false,
            currency: std::sync::OnceLock::new(),
            subject: std::sync::OnceLock::new(),
        };
        let said = vec![json!({ "role": "user", "content": "before" })];
        let model = "cynodeai.pm".to_owned();
        let mut talk = CliChatSession {
            context: &context,
            model,
            project: None,
            profile: None,
            messages: said.clone(),
        };
        tokio::select! {
            answered = talk.ask_question("stopped", false) => panic!("{answered:?}"),
            // It was asked, and nobody answers.
            asked = silent.accept() => drop(asked.unwrap()),
        }
        assert_eq!(talk.messages, said);
    }

    #[test]
    fn an_answer_is_put_together_from_its_pieces() {
        let mut answered = ChatAnswer::default();
        for data in [
            r#"{"choices":[{"delta":{"role":"assistant"}}]}"#,
            r#"{"choices":[{"delta":{"content":"Hel"}}]}"#,
            r#"{"choices":[{"delta":{"content":"lo"},"finish_reason":"stop"}]}"#,
            r#"{"choices":[],"usage":{}}"#,
        ] {
            answered.apply_event(data).unwrap();
        }
        assert_eq!(
            (answered.content.as_str(), answered.finish_reason.as_deref()),
            ("Hello", Some("stop"))
        );
        let failure = answered.apply_event(r#"{"error":{"message":"no more"}}"#).unwrap_err();
        assert_eq!((failure.kind, failure.detail.as_str()), (CliErrorKind::Failed, "no more"));
    }
}

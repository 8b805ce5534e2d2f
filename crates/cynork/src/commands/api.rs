//! `cynork api`: any request of the HTTP API.

use std::io::IsTerminal as _;

use clap::Args;
use serde_json::Value;

use crate::{
    client::ApiRequest,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    format::{escape_invisible, escape_invisible_in_json, to_pretty_json},
    input,
    operations::{self, Operation},
    output::{CliOutput, CliOutputFormat, print_line},
};

/// Make any HTTP API request with your session.
#[derive(Args)]
#[command(after_help = "Example: cynork api GET /v1/me")]
pub(crate) struct ApiArgs {
    /// HTTP method.
    #[arg(value_parser = ["GET", "POST", "PUT", "PATCH", "DELETE"], ignore_case = true)]
    method: String,
    /// Path with its query, such as `/v1/tasks?limit=5`.
    path: String,
    /// File with the request body; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    body: Option<String>,
    /// Content type of the body.
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    content_type: String,
    /// Additional header; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = input::parse_name_value)]
    header: Vec<(String, String)>,
}

impl ApiArgs {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        let method = self.method.to_uppercase();
        if !self.path.starts_with('/') {
            return Err(CliError::new(CliErrorKind::Usage, "a path begins with `/`"));
        }
        let mut call = ApiRequest::at_path(find_operation(&method, &self.path)?, self.path);
        if let Some(file) = &self.body {
            call = call.with_file_body(input::read_file_bytes(file)?, &self.content_type);
        }
        for (name, value) in self.header {
            call = call.with_header(name, value);
        }
        let text = context.client.fetch_text(&call).await?;
        let read = if text.is_empty() { Ok(Value::Null) } else { serde_json::from_str(&text) };
        // If standard output is not a terminal, the response is written unchanged.
        let person = std::io::stdout().is_terminal();
        match (read, context.out.form) {
            (Ok(value), CliOutputFormat::Json) => CliOutput::print_json(&value),
            (Err(_), CliOutputFormat::Json) => CliOutput::print_json(&Value::from(text)),
            (Ok(Value::Null), _) => Ok(()),
            (Ok(value), _) => {
                print_line(&to_pretty_json(&if person {
                    escape_invisible_in_json(value)
                } else {
                    value
                }));
                Ok(())
            }
            (Err(_), _) => {
                let text = if person { escape_invisible(&text) } else { text };
                print_line(text.trim_end_matches('\n'));
                Ok(())
            }
        }
    }
}

/// Finds the operation at a path; an undocumented one gets the name `api`.
fn find_operation(method: &str, path: &str) -> Result<Operation> {
    let path = path.split('?').next().unwrap_or_default();
    let fits = |operation: &&Operation| {
        let mut parts = path.split('/');
        let all = operation.path.split('/').all(|wanted| {
            parts
                .next()
                .is_some_and(|part| part == wanted || (wanted.starts_with('{') && !part.is_empty()))
        });
        operation.method == method && all && parts.next().is_none()
    };
    if let Some(operation) = operations::ALL.iter().find(fits) {
        return Ok(*operation);
    }
    let methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
    let method = methods.into_iter().find(|it| *it == method);
    let method = method.ok_or_else(|| CliError::new(CliErrorKind::Usage, "no such method"))?;
    Ok(Operation { id: "api", method, path: "", command: "api" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_by_its_form() {
        let id = |method: &str, path: &str| find_operation(method, path).unwrap().id;
        assert_eq!(id("GET", "/v1/tasks?limit=1"), "list_tasks");
        assert_eq!(id("PUT", "/v1/projects/web/members/usr_1"), "set_member");
        assert_eq!(id("GET", "/"), "home");
        assert_eq!(id("POST", "/v1/chat/completions"), "api");
        assert_eq!(id("GET", "/v1/projects/"), "api");
    }
}

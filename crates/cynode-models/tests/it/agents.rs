//! Requests that coding agents really send, made shorter.

use std::{fs, path::Path};

use cynode_models::{
    dialect::{
        Dialect, DialectCodec as _, ProviderCapabilities,
        canonical::{CanonicalRequest, MessageRole, ModelErrorKind},
    },
    request_rewrite::RequestRewrite,
};
use serde_json::Value;

use crate::support::{dialect, refused};

fn sent(name: &str) -> (Dialect, Value) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/agents/{name}.json"));
    let sent: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    (dialect(&sent), sent["body"].clone())
}

fn read(name: &str) -> CanonicalRequest {
    let (dialect, body) = sent(name);
    dialect.decode_request(&body).unwrap()
}

const AGENTS: [&str; 9] = [
    "claude-code",
    "claude-code-full",
    "codex",
    "codex-code-mode",
    "codex-patch",
    "goose",
    "goose-naming",
    "opencode",
    "opencode-title",
];

#[test]
fn what_every_agent_sends_can_be_said_to_every_provider_without_its_server_tools() {
    let target =
        ProviderCapabilities { drop_foreign_tools: true, ..ProviderCapabilities::default() };
    for name in AGENTS {
        let request = read(name);
        for provider in Dialect::ALL.iter().copied() {
            let written = provider.encode_request(&request, &target);
            let written = written.unwrap_or_else(|error| refused(&error));
            let snapshot = format!("{name}-to-{}", provider.as_str());
            insta::with_settings!({
                snapshot_path => "../golden/agents",
                prepend_module_to_snapshot => false,
                omit_expression => true,
            }, {
                insta::assert_json_snapshot!(snapshot, written);
            });
        }
    }
}

#[test]
fn the_turns_of_an_agent_are_the_same_in_every_dialect() {
    let turns =
        |name: &str| read(name).messages.iter().map(|message| message.role).collect::<Vec<_>>();
    let loop_of_one_tool = vec![MessageRole::User, MessageRole::Assistant, MessageRole::Tool];
    assert_eq!(turns("claude-code"), loop_of_one_tool);
    assert_eq!(turns("goose"), loop_of_one_tool);
    assert_eq!(turns("opencode"), loop_of_one_tool);
    assert_eq!(turns("codex"), [vec![MessageRole::User], loop_of_one_tool].concat());
}

#[test]
fn an_agents_server_tools_are_refused_by_name_unless_they_may_be_left_out() {
    let error =
        Dialect::Chat.encode_request(&read("codex"), &ProviderCapabilities::default()).unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (
            ModelErrorKind::BadRequest,
            "tools of type `web_search` cannot be said in Chat Completions, which this model's provider speaks"
        )
    );
}

#[test]
fn what_every_agent_sends_passes_the_guard_for_agents_unchanged() {
    for name in AGENTS {
        let (dialect, body) = sent(name);
        let mut request = RequestRewrite::new(dialect, body).unwrap();
        request.strip_hosted_tools();
        let before = request.clone();
        assert_eq!(request.restrict_agent_content(), Ok(0), "{name}");
        assert_eq!(request, before, "{name}");
    }
}

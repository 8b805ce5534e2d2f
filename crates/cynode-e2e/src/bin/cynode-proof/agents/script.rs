//! The scripted model of each agent: it makes the change, may wait, reports, and after an interruption reads the file first.

use std::{collections::BTreeMap, fs, net::SocketAddr, path::Path};

use serde::Deserialize;
use serde_json::{Value, json};

/// The report of the model.
pub(super) const REPORT: &str = "The line is there.";

/// Content of `/out/network` when the agent can reach nothing but the model.
pub(super) const NO_NETWORK: &str = "lo\nreached 127.0.0.1/4001\n";

/// Names of the tools of one agent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tools {
    shell: Shell,
    report: Report,
}

/// How an agent runs a command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shell {
    name: String,
    /// Arguments of the tool; `$command` stands for the command.
    arguments: BTreeMap<String, Value>,
}

/// Name and arguments of the gateway's report tool in the view of an agent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

/// The work of one script.
pub(super) struct Errand<'a> {
    pub(super) task: &'a str,
    pub(super) file: &'a str,
    pub(super) line: &'a str,
    /// Addresses that must not be reachable from the sandbox.
    pub(super) places: &'a [SocketAddr],
    /// Whether a command follows the change that only ends when it is released.
    pub(super) waits: bool,
}

impl Errand<'_> {
    fn change(&self) -> String {
        format!("printf '%s\\n' '{}' >> {}", self.line, self.file)
    }

    /// Returns a command that lists interfaces and reachable addresses. The model is among them, to show that a reachable
    /// address would be seen.
    fn look_around(&self) -> String {
        let places = self.places.iter().map(|place| format!("{}/{}", place.ip(), place.port()));
        let places: Vec<_> = std::iter::once("127.0.0.1/4001".to_owned()).chain(places).collect();
        format!(
            "{{ tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; for place in {}; do \
             timeout 5 bash -c \"exec 3<>/dev/tcp/$place\" 2>/dev/null && echo \"reached $place\"; done; }} > /out/network",
            places.join(" ")
        )
    }
}

impl Tools {
    /// Reads the tools of every agent.
    pub(super) fn read(path: &Path) -> BTreeMap<String, Self> {
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    fn run(&self, command: &str) -> Value {
        let filled = self.shell.arguments.iter().map(|(name, value)| {
            let value = if value == "$command" { json!(command) } else { value.clone() };
            (name.clone(), value)
        });
        json!({ "name": self.shell.name, "arguments": filled.collect::<serde_json::Map<_, _>>() })
    }

    fn report(&self, task: &str) -> Value {
        let mut call = json!({
            "name": self.report.name,
            "arguments": { "task_id": task, "kind": "work_completed", "summary": REPORT },
        });
        if let Some(namespace) = &self.report.namespace {
            call["namespace"] = json!(namespace);
        }
        call
    }

    /// Returns the rules of the scripted model.
    pub(super) fn script(&self, errand: &Errand<'_>) -> Value {
        let mut rules = Vec::new();
        // The rule applies if the agent's last message matches and it has this number of tool results.
        let mut rule = |told: Option<&str>, results: usize, calls: &[&Value]| {
            let mut when = json!({ "tool_offered": self.shell.name, "tool_results": results });
            if let Some(told) = told {
                when["user_matches"] = json!(told);
            }
            let answer = if calls.is_empty() {
                json!({ "text": "That is all." })
            } else {
                json!({ "tool_calls": calls })
            };
            rules.push(json!({ "when": when, "answer": answer }));
        };
        let (file, line, change) = (errand.file, errand.line, errand.change());
        let first = self.run(&format!("{}; {change}", errand.look_around()));
        let wait = self.run("touch ~/begun; until [ -e ~/go ]; do sleep 0.1; done");
        let look = self.run(&format!("git status --short; grep -qxF '{line}' {file} || {change}"));
        let report = self.report(errand.task);
        // It depends on the agent whether the interrupted command left a result.
        let again = Some("have been taken up again");
        for before in [1, 2] {
            rule(again, before, &[&look, &report]);
            rule(again, before + 2, &[]);
        }
        for told in ["An earlier session worked on this", "What the last attempt got wrong"] {
            rule(Some(told), 0, &[&look]);
            rule(Some(told), 1, &[&report]);
            rule(Some(told), 2, &[]);
        }
        rule(None, 0, &[&first]);
        rule(None, 1, &[if errand.waits { &wait } else { &report }]);
        rule(None, 2, &[]);
        // Agents also ask for titles, without tools.
        rules.push(json!({ "answer": { "text": "A line" } }));
        json!({ "rules": rules })
    }
}

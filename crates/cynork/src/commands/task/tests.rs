use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::{Arc, Mutex, OnceLock},
};

use serde_json::{Value, json};

use super::*;
use crate::{
    client::ApiClient,
    config::{CliEnvironment, ConfigFile},
    output::CliOutput,
};

const ME: &str = "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f701";
const OTHER: &str = "usr_0192d5c8b6f07cc1a1a3c2b4d5e6f702";

fn task(id: &str, name: &str, project: &str, by: &str) -> Value {
    json!({ "id": id, "project_id": project, "name": name, "description": name,
        "acceptance_criteria": [], "budget": { "max_cost_micros": null, "max_tokens": null },
        "state": "running", "depends_on": [], "created_by": by,
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z" })
}

const WEB: &str = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f7a1";
const SHOP: &str = "prj_0192d5c8b6f07cc1a1a3c2b4d5e6f7a2";

/// Newest first.
fn tasks() -> Vec<Value> {
    vec![
        task("tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f704", "theirs", WEB, OTHER),
        task("tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f703", "newest", SHOP, ME),
        task("tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f702", "second", WEB, ME),
        task("tsk_0191d5c8b6f07cc1a1a3c2b4d5e6f701", "oldest", WEB, ME),
    ]
}

/// An installation with those tasks, and what it was asked.
fn installation() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = vec![0; 8192];
            let read = stream.read(&mut bytes).unwrap();
            let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
            let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
            noted.lock().unwrap().push(path.clone());
            let of = |project: &str| path.contains(&format!("project={project}"));
            let listed = tasks().into_iter().filter(|it| match (of("web"), of("shop")) {
                (true, _) => it["project_id"] == WEB,
                (_, true) => it["project_id"] == SHOP,
                _ => true,
            });
            let body = if path.starts_with("/v1/me") {
                json!({ "user": { "id": ME, "handle": "ada", "display_name": "Ada", "email": null, "role": "admin",
                    "active": true, "created_at": "2026-01-01T00:00:00Z" }, "installation_role": "admin" })
            } else if let Some(id) = path.strip_prefix("/v1/tasks/") {
                let mut one = tasks().into_iter().find(|it| it["id"] == id).unwrap();
                one["refinement"] = json!({ "class": "bug_fix", "scope": "small",
                    "requirements": [], "assumptions": [] });
                one
            } else {
                json!({ "items": listed.collect::<Vec<_>>() })
            };
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    (base, asked)
}

/// Somebody who uses a project, or none.
fn context(base: &str, project: Option<&str>) -> CliContext {
    let environment = CliEnvironment::default();
    let place = tempfile::tempdir().unwrap();
    let mut file = ConfigFile::load_config(Some(place.path().join("none")), &environment).unwrap();
    file.kept.project = project.map(str::to_owned);
    let client = ApiClient::new(base).unwrap();
    let out = CliOutput::new(CliOutputFormat::Json, false);
    let (currency, subject) = (OnceLock::new(), OnceLock::new());
    CliContext { client, out, file, environment, yes: false, currency, subject }
}

#[tokio::test]
async fn the_last_task_is_the_persons_newest_of_the_project_that_is_meant() {
    let (base, asked) = installation();
    for (kept, flag, name) in [
        (Some("web"), None, "second"),
        (Some("web"), Some("shop"), "newest"),
        (None, Some("web"), "second"),
        (None, None, "newest"),
    ] {
        let named = TaskSelector::new("last", flag.map(str::to_owned));
        let task = named.fetch_task(&context(&base, kept)).await.unwrap();
        assert_eq!(task.name.as_str(), name, "{kept:?} {flag:?}");
    }
    let asked = asked.lock().unwrap();
    assert!(asked[1].contains("project=web"), "{asked:?}");
}

#[tokio::test]
async fn how_a_task_was_understood_is_shown_however_it_is_named() {
    let (base, _) = installation();
    for word in ["last", "tsk_0191", "tsk_0191d5c8b6f07cc1a1a3c2b4d5e6f701"] {
        let task =
            TaskSelector::new(word, None).fetch_whole_task(&context(&base, None)).await.unwrap();
        let scope = task.refinement.map(|it| it.scope.as_str().to_owned());
        assert_eq!(scope.as_deref(), Some("small"), "{word}");
    }
}

#[tokio::test]
async fn a_beginning_of_an_id_is_enough_unless_it_fits_several() {
    let (base, _) = installation();
    let context = context(&base, None);
    let view = |short: &str| {
        let named = TaskSelector::new(short, None);
        let context = &context;
        async move { named.fetch_task(context).await }
    };
    assert_eq!(view("tsk_0191").await.unwrap().name.as_str(), "oldest");
    let several = view("tsk_0192d5c8").await.unwrap_err();
    assert_eq!(several.kind, CliErrorKind::Conflict);
    assert_eq!(
        several.detail,
        "tsk_0192d5c8 could be any of theirs (tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f704), \
         newest (tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f703), second (tsk_0192d5c8b6f07cc1a1a3c2b4d5e6f702)"
    );
    let none = view("tsk_ffff").await.unwrap_err();
    assert_eq!(none.kind, CliErrorKind::NotFound);
    let id = TaskSelector::new("tsk_0191", None).resolve_task_id(&context).await.unwrap();
    assert_eq!(id, "tsk_0191d5c8b6f07cc1a1a3c2b4d5e6f701", "wherever an id is asked for");
}

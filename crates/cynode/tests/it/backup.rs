//! `cynode backup` and `cynode restore` on a whole installation.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::up::{Installation, answered, cynode, data_dir, end, post, up};

const PASSPHRASE: &str = "correct horse battery staple";

/// Runs a command and gives its exit code, its output and its complaint.
fn give(words: &[&str], paths: &[(&str, &PathBuf)]) -> (Option<i32>, String, String) {
    let mut command = cynode();
    command.args(words);
    for (flag, path) in paths {
        command.arg(flag).arg(path);
    }
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A passphrase in a file.
fn passphrase_in(dir: &Path, text: &str) -> PathBuf {
    let file = dir.join("passphrase");
    std::fs::write(&file, format!("{text}\n")).unwrap();
    file
}

/// The address of an installation in what `up` said.
fn address_in(said: &str) -> String {
    let at = said.find("http://").unwrap();
    said[at..].split_whitespace().next().unwrap().trim_end_matches('/').to_owned()
}

/// The ids of all tasks.
async fn tasks_of(base: &str, token: &str) -> Vec<String> {
    let request = reqwest::Client::new().get(format!("{base}/v1/tasks?limit=200"));
    let listed = answered(request.bearer_auth(token)).await;
    let items = listed["items"].as_array().unwrap().iter();
    items.map(|task| task["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_installation_comes_back_from_its_backup_elsewhere_and_goes_on() {
    let (first, second, place) = (data_dir(), data_dir(), data_dir());
    let (source, target, backups) =
        (first.path().join("data"), second.path().join("data"), place.path().join("backups"));
    let key = passphrase_in(place.path(), PASSPHRASE);
    let (child, said) = up(&source);
    let installation = Installation::set_up(&source, &said).await;
    installation.task_is_driven().await;
    let before = tasks_of(&installation.base, &installation.token).await;

    let paths = [("--data-dir", &source), ("--passphrase-file", &key)];
    let destination = backups.to_str().unwrap();
    let words = ["backup", destination, "--verify", "--json", "--keep", "3"];
    let (code, stdout, stderr) = give(&words, &paths);
    assert_eq!(code, Some(0), "{stderr}{stdout}");
    let made: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(made["verification"]["problems"], json!([]));
    let doctor = |more: &[(&str, &PathBuf)]| {
        give(&["doctor", "--restore"], &[&[("--data-dir", &source)], more].concat())
    };
    let (code, stdout, _) = doctor(&[]);
    assert_eq!(code, Some(0), "{stdout}");
    // Where it was written it is not any more, until the installation learns where it is.
    let moved = place.path().join("moved");
    std::fs::rename(&backups, &moved).unwrap();
    let (code, stdout, _) = doctor(&[]);
    assert!(code == Some(1) && stdout.contains("is no complete backup"), "{stdout}");
    for more in [&[("--backups", &moved)][..], &[]] {
        let (code, stdout, _) = doctor(more);
        assert_eq!(code, Some(0), "{stdout}");
    }
    // What happens later is not in it.
    installation.task_is_driven().await;
    end(child);

    let written = PathBuf::from(made["path"].as_str().unwrap());
    let backup = moved.join(written.file_name().unwrap());
    // Whose backup it is must be said, or that it may be anybody's.
    let (code, _, stderr) = give(
        &["restore", backup.to_str().unwrap()],
        &[("--data-dir", &target), ("--passphrase-file", &key)],
    );
    assert!(code == Some(2) && stderr.contains("--public-key"), "{stderr}");
    let foreign = "11".repeat(32);
    let (code, _, stderr) = give(
        &["restore", backup.to_str().unwrap(), "--public-key", &foreign],
        &[("--data-dir", &target), ("--passphrase-file", &key)],
    );
    assert!(code == Some(1) && stderr.contains("is of another installation"), "{stderr}");
    let restore = ["restore", backup.to_str().unwrap(), "--any-origin"];
    let wrong = passphrase_in(second.path(), "another passphrase of some length");
    let (code, _, stderr) =
        give(&restore, &[("--data-dir", &target), ("--passphrase-file", &wrong)]);
    assert!(code == Some(1) && stderr.contains("cannot be opened"), "{stderr}");
    let (code, _, stderr) = give(&restore, &[("--data-dir", &source), ("--passphrase-file", &key)]);
    assert!(code == Some(1) && stderr.contains("is not empty"), "{stderr}");
    let (code, stdout, stderr) =
        give(&restore, &[("--data-dir", &target), ("--passphrase-file", &key)]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("epoch 2: leases and "), "{stdout}");

    let (child, said) = up(&target);
    let base = address_in(&said);
    let login = json!({ "handle": "ada", "password": "correct horse battery" });
    let session = post(&reqwest::Client::new(), &format!("{base}/v1/sessions"), "", login).await;
    let after = tasks_of(&base, session["token"].as_str().unwrap()).await;
    assert_eq!(after, before);
    let (code, stdout, stderr) = give(&["audit", "verify"], &[("--data-dir", &target)]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    end(child);
}

#[test]
fn a_directory_in_which_a_restore_was_interrupted_is_not_started() {
    let dir = data_dir();
    std::fs::write(dir.path().join("restore.json"), "{}").unwrap();
    let (code, _, stderr) = give(&["up"], &[("--data-dir", &dir.path().to_owned())]);
    assert!(code == Some(1) && stderr.contains("run `cynode restore` again"), "{stderr}");
}

#[test]
fn an_installation_that_lost_its_master_key_gets_no_other_one() {
    let dir = data_dir();
    std::fs::write(dir.path().join("database"), "own\n").unwrap();
    let (code, _, stderr) = give(&["up"], &[("--data-dir", &dir.path().to_owned())]);
    assert!(code == Some(1) && stderr.contains("is missing: put it back"), "{stderr}");
    assert!(!dir.path().join("storage/master.key").exists());
}

#[test]
fn nothing_is_backed_up_in_the_clear() {
    let (dir, place) = (data_dir(), data_dir());
    let destination = place.path().to_str().unwrap();
    let paths = [("--data-dir", &dir.path().to_owned())];
    let (code, _, stderr) = give(&["backup", destination], &paths);
    assert!(code == Some(1) && stderr.contains("name who can open the backup"), "{stderr}");
}

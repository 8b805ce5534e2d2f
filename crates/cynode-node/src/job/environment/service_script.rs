//! Services beside a command: programs that run in the same sandbox and end with it.

use cynode_core::environments::EnvironmentService;

/// Default timeout until a service answers, in seconds.
const DEFAULT_READY_SECONDS: u32 = 60;

/// Starts each service, waits until it answers, and then runs the command with its own standard streams. The words after the script are
/// the number of services, four words for each, and the command. All words are quoted by the shell's own rules, and none is read as a
/// part of the script. The output of a service is shown only if it does not answer.
///
/// The sandbox ends with this script, and every service with the sandbox.
const SERVICE_SCRIPT: &str = r#"
count=$1
shift
logs=$(mktemp -d) || exit 125
services=
fail() {
    echo "the service $1 $2" >&2
    tail -c 2000 "$logs/$number" >&2
    kill $services 2> /dev/null
    exit 125
}
number=0
while [ "$number" -lt "$count" ]; do
    name=$1 command=$2 ready=$3 seconds=$4
    shift 4
    /bin/sh -c "$command" > "$logs/$number" 2>&1 < /dev/null &
    service=$!
    services="$services $service"
    end=$(($(date +%s) + seconds + 1))
    until timeout "$seconds" /bin/sh -c "$ready" > /dev/null 2>&1 < /dev/null; do
        kill -0 "$service" 2> /dev/null || fail "$name" "ended before it answered"
        [ "$(date +%s)" -lt "$end" ] || fail "$name" "did not answer within $seconds s"
        sleep 0.1
    done
    number=$((number + 1))
done
"$@"
status=$?
kill $services 2> /dev/null
exit "$status"
"#;

/// Returns the command line that runs a command beside services.
pub(crate) fn wrap_with_services(services: &[EnvironmentService], argv: &[String]) -> Vec<String> {
    let mut words = ["/bin/sh", "-c", SERVICE_SCRIPT, "services"].map(str::to_owned).to_vec();
    words.push(services.len().to_string());
    for EnvironmentService { name, command, ready, ready_seconds } in services {
        let seconds = ready_seconds.unwrap_or(DEFAULT_READY_SECONDS).max(1).to_string();
        words.extend([name.clone(), command.clone(), ready.clone(), seconds]);
    }
    words.extend_from_slice(argv);
    words
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        process::{Command, Output},
    };

    use super::*;

    fn service(name: &str, command: &str, ready: &str, ready_seconds: u32) -> EnvironmentService {
        EnvironmentService {
            name: name.to_owned(),
            command: command.to_owned(),
            ready: ready.to_owned(),
            ready_seconds: Some(ready_seconds),
        }
    }

    fn run(services: &[EnvironmentService], argv: &[&str], place: &Path) -> Output {
        let argv: Vec<_> = argv.iter().map(|word| (*word).to_owned()).collect();
        let words = wrap_with_services(services, &argv);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(place).env("TMPDIR", place).output().unwrap()
    }

    #[test]
    fn the_command_keeps_its_words_its_output_and_its_exit_code() {
        let place = tempfile::tempdir().unwrap();
        let one = service("it's", "echo noise; touch 'up 1'; exec sleep 30", "test -e 'up 1'", 10);
        let two = service("two", "touch up2; exec sleep 30", "test -e up2", 10);
        let script = r#"ls; printf '%s|' "$@"; exit 7"#;
        let odd = ["sh", "-c", script, "sh", "a b", "$HOME", "`x`", "", "'\"\\", "*"];
        let output = run(&[one, two], &odd, place.path());
        let text = String::from_utf8(output.stdout).unwrap();
        let (names, words) = text.split_once("a b|").unwrap();
        assert!(names.contains("up 1\n") && names.contains("up2\n"), "{names}");
        assert_eq!(words, "$HOME|`x`||'\"\\|*|");
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(7), &b""[..]));
    }

    #[test]
    fn a_service_that_ends_or_stays_silent_is_named_and_the_command_does_not_run() {
        let place = tempfile::tempdir().unwrap();
        let dead = service("db", "echo no disk; exit 1", "false", 10);
        let mute = service("queue", "echo begun; exec sleep 30", "false", 1);
        let outputs = [dead, mute].map(|one| {
            let output = run(&[one], &["touch", "ran"], place.path());
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        });
        let expected = [
            (Some(125), "the service db ended before it answered\nno disk\n".to_owned()),
            (Some(125), "the service queue did not answer within 1 s\nbegun\n".to_owned()),
        ];
        assert_eq!(outputs, expected);
        assert!(!place.path().join("ran").exists());
    }
}

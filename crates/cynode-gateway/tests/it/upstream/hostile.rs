//! A tool server whose vendor turned hostile: its program attacks the machine that runs it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use cynode_gateway::upstream::{UpstreamError, UpstreamServer, UpstreamTransport};
use cynode_sandbox::SandboxError;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use uuid::Uuid;

use super::support::{Sandboxed, find, program, sandboxed, say};

/// A server with files or hosts.
fn with(mut server: UpstreamServer, given: &[&Path], hosts: &[&str]) -> UpstreamServer {
    if let UpstreamTransport::Stdio { files, network_hosts, .. } = &mut server.transport {
        *files = given.iter().map(|path| path.to_path_buf()).collect();
        *network_hosts = hosts.iter().map(ToString::to_string).collect();
    }
    server
}

async fn ask(
    upstreams: &Sandboxed,
    server: &UpstreamServer,
    tool: &str,
    arguments: &Value,
) -> Value {
    let (text, _) = say(upstreams, server, tool, &arguments.to_string()).await.unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The host user of the one process with that mark.
fn host_user(mark: &str) -> u32 {
    let found = find(mark);
    let [process] = &found[..] else { panic!("one process has {mark}: {found:?}") };
    let status = fs::read_to_string(process.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    let users: Vec<u32> = line.split_whitespace().map(|user| user.parse().unwrap()).collect();
    assert_eq!(users, [users[0]; 4], "it can become nobody else");
    users[0]
}

#[tokio::test]
async fn a_server_reads_no_file_that_root_keeps_to_itself() {
    let upstreams = sandboxed(|_| {});
    let given = upstreams.place.path().join("given");
    fs::create_dir(&given).unwrap();
    fs::set_permissions(&given, fs::Permissions::from_mode(0o755)).unwrap();
    for (name, mode) in [("open", 0o644), ("secret", 0o600)] {
        fs::write(given.join(name), name).unwrap();
        fs::set_permissions(given.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let server = with(program("modern", "mark-given"), &[&given], &[]);
    let read = ask(&upstreams, &server, "read_given", &json!({ "path": given })).await;
    assert_eq!(read, json!({ "open": "open", "secret": "PermissionError" }));
}

#[tokio::test]
async fn each_server_has_a_host_user_of_its_own_who_is_not_root() {
    let upstreams = sandboxed(|_| {});
    let one = program("modern", "mark-user-one");
    let two = UpstreamServer { id: Uuid::from_u128(2), ..program("modern", "mark-user-two") };
    for server in [&one, &two] {
        say(&upstreams, server, "echo", "{}").await.unwrap();
    }
    let (first, second) = (host_user("mark-user-one"), host_user("mark-user-two"));
    assert!(first >= 1_900_000_000 && second >= 1_900_000_000, "{first} {second}");
    assert_ne!(first, second);
    say(&upstreams, &one, "crash", "{}").await.unwrap_err();
    say(&upstreams, &one, "echo", "{}").await.unwrap();
    assert_eq!(host_user("mark-user-one"), first, "a restart does not change it");
}

#[tokio::test]
async fn a_fork_bomb_fills_the_sandbox_and_nothing_else() {
    let upstreams = sandboxed(|options| options.limits.processes = 16);
    let server = program("modern", "mark-fork");
    let forked = ask(&upstreams, &server, "fork_without_end", &json!({})).await;
    let (count, error) = (forked[0].as_u64().unwrap(), &forked[1]);
    // Beside the program's own processes, the sandbox may have 32.
    assert!(count < 16 + 32, "{forked}");
    assert_eq!(error, "BlockingIOError");
    assert_eq!(ask(&upstreams, &server, "echo", &json!({ "a": 1 })).await, json!({ "a": 1 }));
}

#[tokio::test]
async fn memory_without_end_ends_the_server_and_nothing_else() {
    let upstreams = sandboxed(|options| options.limits.memory_bytes = 128 << 20);
    let server = program("modern", "mark-memory");
    let error = say(&upstreams, &server, "allocate_without_end", "{}").await.unwrap_err();
    assert!(matches!(error, UpstreamError::Unreachable(_)), "{error:?}");
    assert_eq!(ask(&upstreams, &server, "echo", &json!({ "a": 1 })).await, json!({ "a": 1 }));
}

#[tokio::test]
async fn files_in_memory_have_a_size() {
    let upstreams = sandboxed(|options| options.limits.tmp_bytes = 16 << 20);
    let server = program("modern", "mark-fill");
    let filled = ask(&upstreams, &server, "fill", &json!({})).await;
    for place in 0..2 {
        assert!(filled[place].as_u64().unwrap() <= 16, "{filled}");
    }
}

#[tokio::test]
async fn a_server_with_a_network_reaches_no_port_and_no_socket_of_the_machine() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("hostile-{}", std::process::id());
    let _abstract =
        UnixListener::bind_addr(&UnixAddress::from_abstract_name(&name).unwrap()).unwrap();
    let upstreams = sandboxed(|_| {});
    let server = with(program("modern", "mark-connect"), &[], &["api.example.com"]);
    let port = listener.local_addr().unwrap().port();
    let arguments = json!({ "port": port, "abstract": name, "host": "api.example.com" });
    let tried = ask(&upstreams, &server, "connect", &arguments).await;
    let (tcp, mapped, unix, resolved) = (&tried[0], &tried[1], &tried[2], &tried[3]);
    assert_eq!(tcp, "ConnectionRefusedError");
    assert_ne!(mapped, "connected");
    // A newer kernel refuses an abstract socket by Landlock, too.
    assert!(unix == "ConnectionRefusedError" || unix == "PermissionError", "{unix}");
    assert_eq!(resolved, "gaierror", "not even a name is resolved inside");
}

/// A host outside, and where it really is.
fn outside() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut said = [0; 4];
            let _ = stream.read_exact(&mut said);
            let _ = stream.write_all(b"pong from outside");
        }
    });
    address
}

#[tokio::test]
async fn a_server_reaches_its_hosts_by_the_proxy_and_no_other_address() {
    let host = outside();
    let dialled = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&dialled);
    let upstreams = sandboxed(|options| {
        options.dialer.resolve = Arc::new(|name, port| {
            let ip = if name == "inside.example.com" { [10, 0, 0, 1] } else { [93, 184, 216, 34] };
            Box::pin(async move { Ok(vec![SocketAddr::from((ip, port))]) })
        });
        options.dialer.connect = Arc::new(move |address| {
            seen.lock().unwrap().push(address);
            Box::pin(TcpStream::connect(host))
        });
    });
    let hosts = ["api.example.com", "inside.example.com"];
    let server = with(program("modern", "mark-tunnel"), &[], &hosts);
    let private = format!("127.0.0.1:{}", host.port());
    let targets = [
        "api.example.com:443",
        "inside.example.com:443",
        "other.example.com:443",
        "api.example.com:22",
        "169.254.169.254:443",
        "[::1]:443",
        &private,
    ];
    let answers = ask(&upstreams, &server, "tunnel", &json!({ "targets": targets })).await;
    let refused = "HTTP/1.1 403 Forbidden";
    let expected =
        json!(["pong from outside", refused, refused, refused, refused, refused, refused]);
    assert_eq!(answers, expected);
    let public = SocketAddr::from(([93, 184, 216, 34], 443));
    assert_eq!(*dialled.lock().unwrap(), [public], "no other address was even tried");
}

#[tokio::test]
async fn without_hosts_there_is_no_proxy_either() {
    let upstreams = sandboxed(|_| {});
    let server = program("modern", "mark-closed");
    let targets = json!({ "targets": ["api.example.com:443"] });
    let answers = ask(&upstreams, &server, "tunnel", &targets).await;
    assert_eq!(answers, json!(["ConnectionRefusedError"]));
}

#[tokio::test]
async fn nothing_of_a_server_is_left_on_the_machine() {
    let upstreams = sandboxed(|_| {});
    let server = with(program("modern", "mark-rest"), &[], &["api.example.com"]);
    say(&upstreams, &server, "echo", "{}").await.unwrap();
    let sockets = upstreams.place.path().join("sandboxes/egress");
    assert_eq!(fs::read_dir(&sockets).unwrap().count(), 1);
    upstreams.shutdown_all().await;
    assert_eq!(fs::read_dir(&sockets).unwrap().count(), 0);
    assert_eq!(find("mark-rest").len(), 0);
}

#[tokio::test]
async fn where_the_machine_gives_no_sandbox_a_server_is_refused_with_the_fix() {
    let upstreams = sandboxed(|_| {});
    fs::set_permissions(upstreams.place.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let error = upstreams.list_server_tools(&program("modern", "mark-refused")).await.unwrap_err();
    let UpstreamError::Sandbox(cause @ SandboxError::Unreachable(_)) = &error else {
        panic!("{error:?}")
    };
    let fix = format!(
        "{} cannot be reached by the sandbox's user: make it mode 0711",
        upstreams.place.path().display()
    );
    assert_eq!(cause.to_string(), fix);
    assert_eq!(error.to_string(), "the sandbox cannot be started", "agents learn no path");
    assert_eq!(find("mark-refused").len(), 0);
    // It is tried anew when it has been fixed.
    fs::set_permissions(upstreams.place.path(), fs::Permissions::from_mode(0o711)).unwrap();
    upstreams.list_server_tools(&program("modern", "mark-refused")).await.unwrap();
}

#[tokio::test]
async fn a_directory_that_others_could_change_holds_no_sandbox() {
    let upstreams = sandboxed(|_| {});
    fs::set_permissions(upstreams.place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = upstreams.list_server_tools(&program("modern", "mark-shared")).await.unwrap_err();
    assert!(matches!(&error, UpstreamError::Sandbox(SandboxError::Missing { .. })), "{error:?}");
    assert_eq!(find("mark-shared").len(), 0);
}

//! Targets of an attacker: services, files, processes and another job, all owned by this proof.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr, UnixListener},
        },
    },
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use cynode_sandbox::{SandboxProcess, SocketForward};
use serde_json::{Value, json};

use super::layout::{NodeLayout, Wish};

/// The targets that exist while attempts are made.
pub(crate) struct Targets {
    /// The maximum knowledge of an attacker.
    pub(crate) facts: Value,
    pub(crate) mark: String,
    pub(crate) secret: String,
    pub(crate) victim: Child,
    other: SandboxProcess,
}

impl Targets {
    pub(crate) async fn new(place: &NodeLayout, script: &Path) -> anyhow::Result<Self> {
        let number = std::process::id();
        let secret = format!("secret-{number}-of-the-host");
        let other_token = format!("token-{number}-of-another-job");
        let mark = format!("mark-{number}");
        let (tcp4, tcp6) = (tcp("127.0.0.1:0", &secret)?, tcp("[::1]:0", &secret)?);
        let (udp4, udp6, dns) =
            (udp("127.0.0.1:0", &secret)?, udp("[::1]:0", &secret)?, udp("127.0.0.1:0", &secret)?);
        let socket = place.path("host.sock");
        unix(UnixListener::bind(&socket)?, secret.clone());
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
        let abstract_name = format!("escape-{number}");
        unix(
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name)?)?,
            secret.clone(),
        );
        let file = place.path("secret");
        fs::write(&file, &secret)?;

        let other_socket = place.path("other.sock");
        unix(UnixListener::bind(&other_socket)?, format!("{secret} {other_token}"));
        let assignment = place.path("assignment.json");
        fs::write(&assignment, format!("{secret} {other_token}"))?;
        fs::set_permissions(&assignment, fs::Permissions::from_mode(0o600))?;
        // The same port outside, for the control.
        let other_port = tcp("127.0.0.1:0", &other_token)?;
        let mut job = Wish::new("other", &["/bin/sh", "-c", "read -r _"]);
        job.binds = vec![place.folder("other", "/work", true)];
        fs::write(place.path("other/file"), &secret)?;
        job.sockets = vec![SocketForward {
            host: other_socket.clone(),
            port: other_port,
            name: "llm".into(),
        }];
        job.env.insert("TOKEN".into(), other_token.clone());
        let other = job.start(place).await?;

        let shared_name = format!("escape-{number}");
        let mut victim = Command::new("/usr/bin/python3")
            .arg(script)
            .args(["--victim", &secret, &mark, &number.to_string(), &shared_name])
            .env("SECRET", &secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(victim.stdout.take().unwrap()).read_line(&mut line)?;
        anyhow::ensure!(line == "ready\n", "the victim is not there");

        let (disk_path, disk) = disk()?;
        let facts = json!({
            "secret": secret, "mark": mark, "tcp4": tcp4, "tcp6": tcp6, "udp4": udp4, "udp6": udp6, "dns": dns,
            "abstract": abstract_name, "socket": socket, "file": file, "other_socket": other_socket,
            "other_file": place.path("other/file"), "other_assignment": assignment, "other_port": other_port,
            "other_token": other_token, "other_user": 1_900_000_000_u32, "victim": victim.id(),
            "shared_memory": number, "shared_name": shared_name, "disk": disk, "disk_path": disk_path,
        });
        Ok(Self { facts, mark, secret, victim, other })
    }

    /// Returns the facts, with the differences between inside and outside.
    pub(crate) fn facts_for(&self, control: bool, differences: &Value) -> Value {
        let mut facts = self.facts.clone();
        facts["control"] = control.into();
        facts["process"] = if control { self.victim.id().into() } else { 1.into() };
        for (name, value) in differences.as_object().into_iter().flatten() {
            facts[name] = value.clone();
        }
        facts
    }

    /// Checks that all targets are still there and unchanged.
    pub(crate) async fn unharmed(mut self, place: &NodeLayout) -> anyhow::Result<()> {
        anyhow::ensure!(self.victim.try_wait()?.is_none(), "the process of the host is gone");
        let meta = fs::metadata(place.path("secret"))?;
        let same = fs::read_to_string(place.path("secret"))? == self.secret;
        let owner = std::os::unix::fs::MetadataExt::uid(&meta);
        anyhow::ensure!(
            same && owner == rustix::process::getuid().as_raw(),
            "the secret file has changed"
        );
        anyhow::ensure!(!place.remaining_cgroups().is_empty(), "the other job is gone");
        self.other.kill();
        self.other.wait_for_exit().await;
        drop(self.victim.stdin.take());
        self.victim.wait()?;
        Ok(())
    }
}

fn tcp(address: &str, answer: &str) -> anyhow::Result<u16> {
    let listener = TcpListener::bind(address)?;
    let port = listener.local_addr()?.port();
    let answer = answer.to_owned();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 100]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    Ok(port)
}

fn udp(address: &str, answer: &str) -> anyhow::Result<u16> {
    let socket = UdpSocket::bind(address)?;
    let port = socket.local_addr()?.port();
    let answer = answer.to_owned();
    thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 100]) {
            let _ = socket.send_to(answer.as_bytes(), from);
        }
    });
    Ok(port)
}

/// Answers every connection, each in its own thread.
pub(crate) fn unix(listener: UnixListener, answer: String) {
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 100]);
                let _ = stream.write_all(answer.as_bytes());
            });
        }
    });
}

/// Returns the disk of the root file system: its path and its device numbers.
fn disk() -> anyhow::Result<(String, [u32; 2])> {
    let device = std::os::unix::fs::MetadataExt::dev(&fs::metadata("/")?);
    let numbers = [rustix::fs::major(device), rustix::fs::minor(device)];
    for line in fs::read_to_string("/proc/partitions")?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [major, minor, _, name] = words[..]
            && numbers.map(|number| number.to_string()) == [major, minor]
        {
            return Ok((format!("/dev/{name}"), numbers));
        }
    }
    anyhow::bail!("the root is on no disk")
}

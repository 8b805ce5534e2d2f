//! A mail server: the part of SMTP (RFC 5321) with AUTH (RFC 4954) that is needed to accept mail.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use data_encoding::BASE64;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// An accepted mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The authenticated user, if authentication is required.
    pub user: Option<String>,
    /// Sender of the envelope.
    pub from: String,
    /// Recipients of the envelope.
    pub to: Vec<String>,
    /// The whole source, headers included.
    pub source: String,
}

impl Letter {
    /// Returns a header, unfolded.
    pub fn header(&self, name: &str) -> Option<String> {
        let (headers, _) = self.source.split_once("\r\n\r\n")?;
        let headers = headers.replace("\r\n ", " ").replace("\r\n\t", " ");
        headers.split("\r\n").find_map(|line| {
            let (own, value) = line.split_once(": ")?;
            own.eq_ignore_ascii_case(name).then(|| value.to_owned())
        })
    }

    /// Returns the decoded text.
    pub fn text(&self) -> String {
        let body = self.source.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let bytes = match self.header("content-transfer-encoding").as_deref() {
            Some("base64") => BASE64.decode(body.replace("\r\n", "").as_bytes()).unwrap(),
            Some("quoted-printable") => unquoted(body),
            _ => body.as_bytes().to_vec(),
        };
        String::from_utf8(bytes).unwrap().replace("\r\n", "\n")
    }
}

fn unquoted(text: &str) -> Vec<u8> {
    let text = text.replace("=\r\n", "");
    let mut parts = text.split('=');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    bytes
}

struct SmtpState {
    login: Option<(String, String)>,
    refusals: Mutex<VecDeque<&'static str>>,
    messages: watch::Sender<Vec<Letter>>,
}

/// A mail server.
pub struct SmtpInbox {
    /// Listen address.
    pub address: SocketAddr,
    shared: Arc<SmtpState>,
    stop: CancellationToken,
}

impl SmtpInbox {
    /// Starts it on a free port. If there are a name and a password, sending requires them.
    pub async fn start(login: Option<(&str, &str)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let login = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
        let (refusals, messages) = (Mutex::default(), watch::Sender::default());
        let shared = Arc::new(SmtpState { login, refusals, messages });
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (until, own) = (stop.clone(), shared.clone());
        tasks.clone().spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = until.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                if let Ok((stream, _)) = accepted {
                    let shared = own.clone();
                    tasks.spawn(async move {
                        let _ = Talk::new(stream, shared).run().await;
                    });
                }
            }
        });
        Self { address, shared, stop }
    }

    /// Returns its SMTP URL.
    pub fn url(&self) -> String {
        format!("plain://{}", self.address)
    }

    /// Answers the next recipient with this line instead.
    pub fn refuse(&self, line: &'static str) {
        self.shared.refusals.lock().unwrap().push_back(line);
    }

    /// Returns all mails, in order.
    pub fn messages(&self) -> Vec<Letter> {
        self.shared.messages.borrow().clone()
    }

    /// Waits for this number of mails.
    pub async fn until(&self, count: usize) -> Vec<Letter> {
        let mut messages = self.shared.messages.subscribe();
        messages.wait_for(|messages| messages.len() >= count).await.unwrap().clone()
    }
}

impl Drop for SmtpInbox {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Talk {
    lines: Lines<BufReader<OwnedReadHalf>>,
    out: OwnedWriteHalf,
    shared: Arc<SmtpState>,
    user: Option<String>,
    from: Option<String>,
    to: Vec<String>,
}

impl Talk {
    fn new(stream: TcpStream, shared: Arc<SmtpState>) -> Self {
        let (reading, out) = stream.into_split();
        let lines = BufReader::new(reading).lines();
        Self { lines, out, shared, user: None, from: None, to: Vec::new() }
    }

    async fn say(&mut self, line: &str) -> std::io::Result<()> {
        self.out.write_all(format!("{line}\r\n").as_bytes()).await
    }

    async fn run(mut self) -> std::io::Result<()> {
        self.say("220 inbox.example ESMTP").await?;
        while let Some(line) = self.lines.next_line().await? {
            let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match verb.to_ascii_uppercase().as_str() {
                "EHLO" => {
                    self.say("250-inbox.example").await?;
                    self.say("250-AUTH PLAIN LOGIN").await?;
                    self.say("250 8BITMIME").await?;
                }
                "HELO" | "NOOP" => self.say("250 inbox.example").await?,
                "RSET" => {
                    (self.from, self.to) = (None, Vec::new());
                    self.say("250 2.0.0 forgotten").await?;
                }
                "AUTH" => self.authenticate(rest).await?,
                "MAIL" if self.shared.login.is_some() && self.user.is_none() => {
                    self.say("530 5.7.0 say who you are").await?;
                }
                "MAIL" => {
                    self.from = address(rest);
                    self.say("250 2.1.0 go on").await?;
                }
                "RCPT" => self.recipient(rest).await?,
                "DATA" if self.from.is_some() && !self.to.is_empty() => self.letter().await?,
                "DATA" | "VRFY" => self.say("503 5.5.1 not now").await?,
                "QUIT" => return self.say("221 2.0.0 goodbye").await,
                _ => self.say("500 5.5.2 what?").await?,
            }
        }
        Ok(())
    }

    async fn recipient(&mut self, rest: &str) -> std::io::Result<()> {
        let refusal = self.shared.refusals.lock().unwrap().pop_front();
        match (refusal, address(rest)) {
            (Some(line), _) => self.say(line).await,
            (None, Some(to)) => {
                self.to.push(to);
                self.say("250 2.1.5 go on").await
            }
            (None, None) => self.say("501 5.1.3 to whom?").await,
        }
    }

    async fn authenticate(&mut self, rest: &str) -> std::io::Result<()> {
        let first = match rest.split_once(' ') {
            Some((method, first)) if method.eq_ignore_ascii_case("PLAIN") => first.to_owned(),
            _ if rest.eq_ignore_ascii_case("PLAIN") => {
                self.say("334 ").await?;
                self.lines.next_line().await?.unwrap_or_default()
            }
            _ => return self.say("504 5.5.4 only PLAIN").await,
        };
        let decoded = BASE64.decode(first.as_bytes()).unwrap_or_default();
        let words: Vec<_> = decoded.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let right = match (&self.shared.login, words.as_slice()) {
            (Some((user, password)), [_, given, secret]) => user == given && password == secret,
            (None | Some(_), _) => false,
        };
        if right {
            self.user = Some(words[1].clone().into_owned());
            return self.say("235 2.7.0 welcome").await;
        }
        self.say("535 5.7.8 that is not right").await
    }

    async fn letter(&mut self) -> std::io::Result<()> {
        self.say("354 end with a dot").await?;
        let mut source = String::new();
        while let Some(line) = self.lines.next_line().await? {
            if line == "." {
                break;
            }
            // Undo dot-stuffing: a line that begins with a dot has an extra one.
            source.push_str(line.strip_prefix('.').unwrap_or(&line));
            source.push_str("\r\n");
        }
        let from = self.from.take().unwrap_or_default();
        let (to, user) = (std::mem::take(&mut self.to), self.user.clone());
        self.shared
            .messages
            .send_modify(|messages| messages.push(Letter { user, from, to, source }));
        self.say("250 2.0.0 taken").await
    }
}

/// Returns the address in `FROM:<a@b>` or `TO:<a@b>`.
fn address(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('<')?;
    rest.split_once('>').map(|(address, _)| address.to_owned())
}

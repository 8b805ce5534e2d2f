//! Pushes branches to a forge and mirrors branches from it, by the `git` program.
//!
//! The credential is in git's environment while git runs, restricted to the forge's host. A push is never forced, never goes to the
//! default branch, and only to branches with CyNode's prefix.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use cynode_net::ssrf::{is_private_host, resolve_public_addresses};
use data_encoding::BASE64;
use secrecy::{ExposeSecret, SecretString};
use tokio::{process::Command, sync::OnceCell};
use url::Url;

use crate::{
    ForgeKind,
    git_process::{GitLimits, GitOutput, GitProcess, is_transient_failure, limited_git_command},
    http::PRIVATE_ADDRESS_MESSAGE,
};

/// Timeout of one git command.
const GIT_TIMEOUT: Duration = Duration::from_mins(5);

/// Maximum number of bytes that are read of git's output.
const MAX_OUTPUT_BYTES: u64 = 16 * 1024 * 1024;

/// Prefix of the branches that CyNode pushes.
pub const BRANCH_PREFIX: &str = "cynode/";

/// Credential of a repository over HTTP.
#[derive(Clone, Debug)]
pub struct GitCredential {
    user: &'static str,
    token: SecretString,
}

impl GitCredential {
    /// Creates a credential from a token, with the user name that the forge's git server expects.
    pub const fn new(kind: ForgeKind, token: SecretString) -> Self {
        let user = match kind {
            ForgeKind::Github => "x-access-token",
            ForgeKind::Gitlab => "oauth2",
            ForgeKind::Gitea => "cynode",
        };
        Self { user, token }
    }
}

/// A remote repository.
#[derive(Clone, Debug)]
pub struct GitRemote {
    /// Clone URL.
    pub url: Url,
    /// Credential; `None` for a local directory.
    pub credential: Option<GitCredential>,
    /// Whether the URL may be a directory of this machine.
    pub files: bool,
    /// Whether the host may be this machine or in a private network.
    pub private: bool,
}

/// Error of a git command.
#[derive(Debug, thiserror::Error)]
pub enum GitRemoteError {
    /// The request is permanently rejected; the text says why.
    #[error("{0}")]
    Refused(String),
    /// The command failed for a reason that may pass.
    #[error("{0}")]
    Failed(String),
    /// git could not be run.
    #[error("git could not be run: {0}")]
    Io(#[from] std::io::Error),
    /// git exceeded its timeout.
    #[error("git took longer than {} s", GIT_TIMEOUT.as_secs())]
    Slow,
}

/// Outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// The branch was created or advanced.
    Moved,
    /// The branch already had the commit.
    Already,
}

/// Pushes a commit to a branch with CyNode's prefix.
#[tracing::instrument(name = "forge.git.push_branch", skip_all, fields(branch, commit))]
pub async fn push_branch(
    git_dir: &Path,
    remote: &GitRemote,
    branch: &str,
    commit: &str,
    default_branch: &str,
) -> Result<PushOutcome, GitRemoteError> {
    if branch == default_branch {
        return Err(GitRemoteError::Refused("nothing is ever pushed to the default branch".into()));
    }
    if !branch.starts_with(BRANCH_PREFIX) || !is_branch_name(branch) {
        return Err(GitRemoteError::Refused(format!(
            "`{branch}` is no branch of ours: those begin with `{BRANCH_PREFIX}`"
        )));
    }
    if !is_commit_id(commit) {
        return Err(GitRemoteError::Refused("a commit is 40 or 64 hexadecimal digits".into()));
    }
    let name = format!("refs/heads/{branch}");
    if remote_ref_commit(git_dir, remote, &name).await?.as_deref() == Some(commit) {
        return Ok(PushOutcome::Already);
    }
    // Without `+` and without a force option: git and the server both reject a push that is not a fast-forward.
    let what = format!("{commit}:{name}");
    let url = validate_remote_url(remote)?;
    let args = [
        "push",
        "--porcelain",
        "--no-verify",
        "--no-signed",
        "--no-recurse-submodules",
        &url,
        &what,
    ];
    let done = run_git(GitLimits::WRITE_PACK, git_dir, remote, &args).await?;
    if done.status.success() {
        return Ok(PushOutcome::Moved);
    }
    // A concurrent push of the same commit is not a failure.
    let error = classify_git_failure(&done);
    match remote_ref_commit(git_dir, remote, &name).await {
        Ok(Some(there)) if there == commit => Ok(PushOutcome::Already),
        _ => Err(error),
    }
}

/// Fetches the newest commit of a remote branch into the local repository and returns it. The local branch is only fast-forwarded.
#[tracing::instrument(name = "forge.git.fetch_branch", skip_all, fields(branch))]
pub async fn fetch_branch(
    git_dir: &Path,
    remote: &GitRemote,
    branch: &str,
) -> Result<String, GitRemoteError> {
    if !is_branch_name(branch) {
        return Err(GitRemoteError::Refused(format!("`{branch}` is no name of a branch")));
    }
    let name = format!("refs/heads/{branch}");
    let (url, what) = (validate_remote_url(remote)?, format!("{name}:{name}"));
    let args = [
        "fetch",
        "--no-tags",
        "--atomic",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
        &url,
        &what,
    ];
    let done = run_git(GitLimits::READ, git_dir, remote, &args).await?;
    if !done.status.success() {
        return Err(classify_git_failure(&done));
    }
    let name = format!("{name}^{{commit}}");
    let mut look = build_git_command(GitLimits::READ, git_dir, remote);
    let done =
        collect_git_output(look.args(["rev-parse", "--verify", "--end-of-options", &name])).await?;
    let commit = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    if done.status.success() && is_commit_id(&commit) {
        Ok(commit)
    } else {
        Err(classify_git_failure(&done))
    }
}

/// Fetches the newest commit of one of our branches at the remote under a ref of its own, and leaves the local branch as it is. Returns
/// `None` if the remote has no such branch. An installation that was restored from a backup finds what it pushed after the backup.
#[tracing::instrument(name = "forge.git.fetch_lost_branch", skip_all, fields(branch))]
pub async fn fetch_lost_branch(
    git_dir: &Path,
    remote: &GitRemote,
    branch: &str,
) -> Result<Option<String>, GitRemoteError> {
    if !branch.starts_with(BRANCH_PREFIX) || !is_branch_name(branch) {
        return Err(GitRemoteError::Refused(format!("`{branch}` is no branch of ours")));
    }
    let name = format!("refs/heads/{branch}");
    let Some(commit) = remote_ref_commit(git_dir, remote, &name).await? else { return Ok(None) };
    let (url, what) = (validate_remote_url(remote)?, format!("+{name}:refs/cynode/lost/{branch}"));
    let args = [
        "fetch",
        "--no-tags",
        "--atomic",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
        &url,
        &what,
    ];
    let done = run_git(GitLimits::READ, git_dir, remote, &args).await?;
    if done.status.success() { Ok(Some(commit)) } else { Err(classify_git_failure(&done)) }
}

/// Returns the commit of a remote ref.
async fn remote_ref_commit(
    git_dir: &Path,
    remote: &GitRemote,
    name: &str,
) -> Result<Option<String>, GitRemoteError> {
    let url = validate_remote_url(remote)?;
    let args = ["ls-remote", "--refs", &url, name];
    let done = run_git(GitLimits::READ, git_dir, remote, &args).await?;
    if !done.status.success() {
        return Err(classify_git_failure(&done));
    }
    let said = String::from_utf8_lossy(&done.stdout);
    let found = said.lines().filter_map(|line| line.split_once('\t'));
    Ok(found.into_iter().find(|(_, found)| *found == name).map(|(commit, _)| commit.to_owned()))
}

/// Validates the URL of a remote.
fn validate_remote_url(remote: &GitRemote) -> Result<String, GitRemoteError> {
    let url = &remote.url;
    let good = match url.scheme() {
        "https" | "http" => url.host_str().is_some_and(|host| !host.is_empty()),
        "file" => remote.files,
        _ => false,
    };
    if !good {
        return Err(GitRemoteError::Refused("a repository is reached by http or https".into()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(GitRemoteError::Refused("no credential belongs into an address".into()));
    }
    Ok(url.as_str().to_owned())
}

async fn run_git(
    limits: GitLimits,
    git_dir: &Path,
    remote: &GitRemote,
    args: &[&str],
) -> Result<GitOutput, GitRemoteError> {
    let mut git = build_git_command(limits, git_dir, remote);
    for pin in resolve_pin_settings(remote).await? {
        git.args(["-c", &pin]);
    }
    collect_git_output(git.args(args)).await
}

async fn collect_git_output(git: &mut Command) -> Result<GitOutput, GitRemoteError> {
    let process = GitProcess::spawn_limited(git)?;
    let done = process.collect_output_within(GIT_TIMEOUT, MAX_OUTPUT_BYTES).await?;
    let done = done.ok_or(GitRemoteError::Slow)?;
    if !done.is_complete {
        let why = format!("git says more than {MAX_OUTPUT_BYTES} bytes about the remote");
        return Err(GitRemoteError::Refused(why));
    }
    Ok(done)
}

/// SSRF guard: returns git settings that pin the host to its public addresses. Otherwise git would resolve the name again and could
/// get another address.
async fn resolve_pin_settings(remote: &GitRemote) -> Result<Vec<String>, GitRemoteError> {
    let url = &remote.url;
    if remote.private || url.scheme() == "file" {
        return Ok(Vec::new());
    }
    if is_private_host(url) {
        return Err(GitRemoteError::Refused(PRIVATE_ADDRESS_MESSAGE.into()));
    }
    let Some(name) = url.domain() else { return Ok(Vec::new()) };
    // A sign before a name is an instruction to curl: `-` removes the pin, `+` makes it temporary.
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(GitRemoteError::Refused(
            "the name of a forge begins with a letter or a digit".into(),
        ));
    }
    check_pinning_support().await?;
    let port = url.port_or_known_default().unwrap_or(443);
    let found = resolve_public_addresses(name, port).await.map_err(|error| {
        GitRemoteError::Failed(format!("the name of the forge could not be looked up: {error}"))
    })?;
    if found.is_empty() {
        return Err(GitRemoteError::Refused(PRIVATE_ADDRESS_MESSAGE.into()));
    }
    Ok(build_pin_settings(name, port, &found))
}

/// Rejects a git version that ignores the pin settings. A successful check is cached.
async fn check_pinning_support() -> Result<(), GitRemoteError> {
    static PINNING_SUPPORT: OnceCell<()> = OnceCell::const_new();
    let ask = || async {
        let mut git = limited_git_command(GitLimits::READ);
        let done = collect_git_output(git.arg("version")).await?;
        if is_pinning_supported(&String::from_utf8_lossy(&done.stdout)) {
            return Ok(());
        }
        Err(GitRemoteError::Refused(
            "git 2.37 or newer is needed: an older one cannot be held to public addresses".into(),
        ))
    };
    PINNING_SUPPORT.get_or_try_init(ask).await.copied()
}

/// Returns whether git's version output says 2.37 or newer.
fn is_pinning_supported(said: &str) -> bool {
    let version = || {
        let mut numbers = said.trim().strip_prefix("git version ")?.split('.');
        let (major, minor) = (numbers.next()?, numbers.next()?);
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    version() >= Some((2, 37))
}

/// Builds the pin settings. A name with a trailing dot is the same host, but needs its own pin.
fn build_pin_settings(name: &str, port: u16, found: &[SocketAddr]) -> Vec<String> {
    let addresses = found.iter().map(|address| match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    });
    let addresses = addresses.collect::<Vec<_>>().join(",");
    let name = name.trim_end_matches('.');
    ["", "."].map(|end| format!("http.curloptResolve={name}{end}:{port}:{addresses}")).into()
}

/// Builds a git command that ignores all configuration but its arguments and can only contact the remote.
fn build_git_command(limits: GitLimits, git_dir: &Path, remote: &GitRemote) -> Command {
    let mut git = limited_git_command(limits);
    git.args(["-c", "core.hooksPath=/dev/null", "-c", "fetch.fsckObjects=true", "-c", "gc.auto=0"])
        .args([
            "-c",
            "credential.helper=",
            "-c",
            "core.askPass=",
            "-c",
            "http.followRedirects=false",
        ])
        .args([
            "-c",
            "push.followTags=false",
            "-c",
            "push.gpgSign=false",
            "-c",
            "core.fsmonitor=false",
        ])
        .args(["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60"])
        .args(["-c", "protocol.allow=never"])
        .args(["-c", "protocol.https.allow=always", "-c", "protocol.http.allow=always"])
        .arg("--git-dir")
        .arg(git_dir);
    let mut settings = Vec::new();
    if remote.files {
        settings.push(("protocol.file.allow".to_owned(), "always".to_owned()));
    }
    if let (Some(credential), true) = (&remote.credential, remote.url.scheme() != "file") {
        let pair = format!("{}:{}", credential.user, credential.token.expose_secret());
        let header = format!("Authorization: Basic {}", BASE64.encode(pair.as_bytes()));
        // The credential applies to this host only: git sends it nowhere else.
        let origin = remote.url.origin().ascii_serialization();
        settings.push((format!("http.{origin}/.extraHeader"), header));
    }
    git.env("GIT_CONFIG_COUNT", settings.len().to_string());
    for (at, (key, value)) in settings.iter().enumerate() {
        git.env(format!("GIT_CONFIG_KEY_{at}"), key).env(format!("GIT_CONFIG_VALUE_{at}"), value);
    }
    git
}

/// Classifies a failure by git's output.
fn classify_git_failure(done: &GitOutput) -> GitRemoteError {
    let said = format!("{}\n{}", String::from_utf8_lossy(&done.stdout), done.stderr);
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    let lines = said.lines().map(str::trim);
    let told =
        lines.filter(|line| !line.is_empty() && !line.starts_with("hint:") && *line != "Done");
    let told = format!("git: {}", told.take(4).collect::<Vec<_>>().join("; "));
    if is_transient_failure(&done.stderr) {
        GitRemoteError::Failed(told)
    } else if done.is_over_limit() {
        GitRemoteError::Refused(format!(
            "the branch needs more memory or time than git is given: it has too many objects or too large files. {told}"
        ))
    } else if has(&["non-fast-forward", "fetch first", "stale info", "needs force"]) {
        GitRemoteError::Refused(format!(
            "the branch has commits that this one does not follow; nothing is forced. {told}"
        ))
    } else if has(&[
        "Authentication failed",
        "could not read Username",
        "could not read Password",
        "error: 401",
    ]) {
        GitRemoteError::Refused(format!(
            "the credential is not taken: set a new one on the project's remote. {told}"
        ))
    } else if has(&["error: 403"]) {
        GitRemoteError::Refused(format!(
            "the credential may not do this: docs/guides/forges.md lists what it must be allowed. {told}"
        ))
    } else if has(&["not found", "error: 404", "does not appear to be a git repository"]) {
        GitRemoteError::Refused(format!(
            "there is no such repository, or the credential may not see it. {told}"
        ))
    } else if has(&["couldn't find remote ref"]) {
        GitRemoteError::Refused(format!("there is no such branch. {told}"))
    } else if has(&[
        "remote rejected",
        "pre-receive hook declined",
        "fsck error",
        "redirect",
        "not allowed",
    ]) {
        GitRemoteError::Refused(told)
    } else {
        GitRemoteError::Failed(told)
    }
}

/// Returns whether the text is a branch name that git cannot read as anything else.
pub fn is_branch_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+".contains(&b);
    (1..=200).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with('+')
        && !name.contains("..")
        && name.split('/').all(|part| {
            !part.is_empty()
                && !part.starts_with(['.', '-'])
                && !part.ends_with('.')
                && !part.ends_with(".lock")
        })
}

/// Returns whether the text is a commit id that git cannot read as anything else.
fn is_commit_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_branch_can_be_nothing_else() {
        for good in ["main", "cynode/fix-login-1a2b", "release/1.2+x", "a_b"] {
            assert!(is_branch_name(good), "{good}");
        }
        for bad in [
            "", "-f", "a/-f", "a..b", "/a", "a/", "a//b", "a.lock", "a b", "a:b", "a@{1}", ".a",
            "a/.b", "a.",
        ] {
            assert!(!is_branch_name(bad), "{bad}");
        }
    }

    #[test]
    fn only_addresses_of_http_without_a_credential_are_used() {
        let taken = |url: &str, files| {
            let url = url.parse().unwrap();
            validate_remote_url(&GitRemote { url, credential: None, files, private: true }).is_ok()
        };
        assert!(taken("https://h/o/r.git", false) && taken("http://127.0.0.1:1/r", false));
        assert!(taken("file:///srv/r.git", true) && !taken("file:///srv/r.git", false));
        for bad in ["ssh://h/r", "git://h/r", "https://u:p@h/r", "https://u@h/r", "ext::sh -c x"] {
            assert!(!taken(bad, true), "{bad}");
        }
    }

    #[test]
    fn git_is_held_to_the_addresses_that_were_looked_at() {
        let found = ["93.184.216.34:8443", "[2606:2800:220:1::1]:8443"];
        let found = found.map(|address| address.parse::<SocketAddr>().unwrap());
        let both = ["h.example", "h.example."].map(|name| {
            format!("http.curloptResolve={name}:8443:93.184.216.34,[2606:2800:220:1::1]")
        });
        for name in ["h.example", "h.example."] {
            assert_eq!(build_pin_settings(name, 8443, &found), both);
        }
    }

    #[tokio::test]
    async fn a_name_that_git_would_not_be_held_to_is_refused() {
        for name in ["-h.example", "+h.example"] {
            let url = format!("https://{name}/o/r.git").parse().unwrap();
            let remote = GitRemote { url, credential: None, files: false, private: false };
            let refused = resolve_pin_settings(&remote).await.unwrap_err();
            assert!(matches!(refused, GitRemoteError::Refused(_)), "{name}: {refused}");
        }
    }

    #[test]
    fn a_git_that_is_too_old_or_does_not_say_how_old_it_is_is_not_trusted_to_be_held() {
        for new in ["2.37.0\n", "2.37.1 (Apple Git-137.1)\n", "2.100.0.windows.1", "3.0.GIT"] {
            assert!(is_pinning_supported(&format!("git version {new}")), "{new}");
        }
        for old in ["git version 2.36.9\n", "git version 1.99.0", "git version 2", "2.47.3", ""] {
            assert!(!is_pinning_supported(old), "{old}");
        }
    }

    #[test]
    fn the_credential_is_in_the_environment_for_its_host_and_in_no_argument() {
        let remote = GitRemote {
            url: "https://h.example:8443/o/r.git".parse().unwrap(),
            credential: Some(GitCredential::new(ForgeKind::Gitlab, "s3cret".into())),
            files: false,
            private: false,
        };
        let git = build_git_command(GitLimits::READ, Path::new("/r"), &remote);
        let git = git.as_std();
        assert!(git.get_args().all(|arg| !arg.to_string_lossy().contains("s3cret")));
        let value = |name: &str| {
            let found = git.get_envs().find(|(key, _)| *key == name);
            found.and_then(|(_, value)| value).map(|value| value.to_string_lossy().into_owned())
        };
        assert_eq!(value("GIT_CONFIG_COUNT").as_deref(), Some("1"));
        assert_eq!(
            value("GIT_CONFIG_KEY_0").as_deref(),
            Some("http.https://h.example:8443/.extraHeader")
        );
        let header = format!("Authorization: Basic {}", BASE64.encode(b"oauth2:s3cret"));
        assert_eq!(value("GIT_CONFIG_VALUE_0"), Some(header));
    }
}

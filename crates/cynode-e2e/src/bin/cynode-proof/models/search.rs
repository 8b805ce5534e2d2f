//! Searches all persistent data for fragments of planted secrets.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Looks for pieces of planted secrets in files.
#[derive(Args)]
pub(crate) struct Search {
    /// The list of secrets that `plant` wrote.
    #[arg(long)]
    secrets: PathBuf,
    /// What the files hold somewhere if they are the right ones. May be given again.
    #[arg(long)]
    holds: Vec<String>,
    /// Files, and directories with all that is in them.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// A secret, as it is stored for the search.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Secret {
    pub(super) kind: String,
    pub(super) secret: String,
}

/// Length of a fragment that must not occur.
const PIECE: usize = 12;

/// All fragments of some secrets.
pub(super) struct Pieces(HashMap<[u8; PIECE], usize>);

impl Pieces {
    pub(super) fn of<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut pieces = HashMap::new();
        for (number, secret) in secrets.into_iter().enumerate() {
            // Markers may be between the lines of a secret.
            for line in secret.lines() {
                for piece in line.as_bytes().array_windows::<PIECE>() {
                    pieces.insert(*piece, number);
                }
            }
        }
        Self(pieces)
    }

    /// Returns the number of the first secret of which a fragment occurs, and its position.
    pub(super) fn first(&self, bytes: &[u8]) -> Option<(usize, String)> {
        let mut windows = bytes.array_windows::<PIECE>().enumerate();
        let (at, piece) = windows.find(|(_, piece)| self.0.contains_key(*piece))?;
        let around = &bytes[at.saturating_sub(100)..at + PIECE];
        Some((self.0[piece], format!("…{}…", String::from_utf8_lossy(around))))
    }

    /// Counts the occurrences of fragments of each secret.
    fn count(&self, bytes: &[u8], found: &mut BTreeMap<usize, usize>) {
        for piece in bytes.array_windows::<PIECE>() {
            if let Some(number) = self.0.get(piece) {
                *found.entry(*number).or_default() += 1;
            }
        }
    }
}

/// Decodes the hexadecimal digits that a database dump contains.
fn decoded(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), bytes);
    while let Some(at) = rest.windows(2).position(|pair| pair == b"\\x") {
        rest = &rest[at + 2..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let whole = &rest[..digits / 2 * 2];
        out.extend(data_encoding::HEXLOWER_PERMISSIVE.decode(whole).unwrap_or_default());
        out.push(b'\n');
        rest = &rest[digits..];
    }
    out
}

fn files(path: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if !path.is_dir() {
        found.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        files(&entry?.path(), found)?;
    }
    Ok(())
}

pub(crate) fn run(search: &Search) -> anyhow::Result<bool> {
    let secrets: Vec<Secret> = serde_json::from_slice(&fs::read(&search.secrets)?)?;
    ensure!(!secrets.is_empty(), "there are no secrets to look for");
    let pieces = Pieces::of(secrets.iter().map(|secret| secret.secret.as_str()));
    let mut all = Vec::new();
    for path in &search.paths {
        files(path, &mut all).with_context(|| path.display().to_string())?;
    }
    let (mut size, mut found_in_all, mut problems) = (0, 0, Vec::new());
    let mut missing: Vec<&String> = search.holds.iter().collect();
    for file in &all {
        let bytes = fs::read(file).with_context(|| file.display().to_string())?;
        size += bytes.len();
        missing.retain(|text| !bytes.windows(text.len()).any(|part| part == text.as_bytes()));
        let mut found = BTreeMap::new();
        pieces.count(&bytes, &mut found);
        pieces.count(&decoded(&bytes), &mut found);
        found_in_all += found.len();
        problems.extend(pieces.first(&bytes).map(|(_, around)| around));
        for (number, times) in found {
            let kind = &secrets[number].kind;
            problems
                .push(format!("{}: {times} pieces of secret {number} ({kind})", file.display()));
        }
    }
    problems.truncate(20);
    println!(
        "{}",
        json!({ "secrets": secrets.len(), "files": all.len(), "bytes": size, "found": found_in_all, "problems": problems,
            "missing": missing })
    );
    Ok(found_in_all == 0 && missing.is_empty())
}

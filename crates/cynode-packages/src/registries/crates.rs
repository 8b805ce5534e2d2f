//! Rust crates: the sparse index and the archives.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use cynode_core::environments::PackageSource;
use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::json;
use tokio::task::spawn_blocking;
use url::Url;

use crate::{
    error::Refusal,
    handler::{Answer, ClientFacts, HiddenVersions, JobPackageHandler},
    integrity::{DigestKind, ExpectedDigest},
    rules::VersionFacts,
};

const SOURCE: PackageSource = PackageSource::Crates;

/// Maximum size of the manifest in an archive.
const MAX_MANIFEST_BYTES: u64 = 4 << 20;

/// Maximum number of unpacked bytes that are read in search of the manifest.
const MAX_SCANNED_BYTES: u64 = 512 << 20;

/// Configuration of an index.
#[derive(Deserialize)]
struct IndexConfig {
    dl: String,
}

/// A version in the index.
#[derive(Deserialize)]
struct IndexLine {
    vers: String,
    cksum: String,
    #[serde(default)]
    yanked: bool,
    #[serde(default)]
    pubtime: Option<String>,
}

impl IndexLine {
    fn facts<'a>(&'a self, package: &'a str) -> VersionFacts<'a> {
        VersionFacts {
            source: SOURCE,
            package,
            version: &self.vers,
            published: self.pubtime.as_deref(),
            yanked: self.yanked,
        }
    }
}

/// Answers a request below `/crates/`.
pub(crate) async fn answer_request(
    job: &JobPackageHandler,
    path: &[&str],
    client: &ClientFacts,
) -> Result<Answer, Refusal> {
    match path {
        ["config.json"] => {
            let dl = format!("{}/crates/dl/{{crate}}/{{version}}", client.base);
            let body = json!({ "dl": dl }).to_string().into_bytes();
            Ok(Answer::Document { body, content_type: "application/json" })
        }
        ["dl", name, version] => archive(job, name, version).await,
        [.., name] if is_index_path(path, name) => index(job, name).await,
        _ => Err(Refusal::forbidden(
            "the package proxy serves the sparse index and archives of crates only",
        )),
    }
}

fn is_crate_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// Returns the path of a crate in the index.
fn index_path(name: &str) -> Option<String> {
    if !is_crate_name(name) {
        return None;
    }
    let name = name.to_ascii_lowercase();
    Some(match name.len() {
        1 => format!("1/{name}"),
        2 => format!("2/{name}"),
        3 => format!("3/{}/{name}", name.get(..1)?),
        _ => format!("{}/{}/{name}", name.get(..2)?, name.get(2..4)?),
    })
}

fn is_index_path(path: &[&str], name: &str) -> bool {
    index_path(name).is_some_and(|it| it == path.join("/").to_ascii_lowercase())
}

async fn load_lines(job: &JobPackageHandler, name: &str) -> Result<String, Refusal> {
    let upstream = &job.proxy.upstreams().crates;
    let path = index_path(name).ok_or_else(|| Refusal::not_found("this is no name of a crate"))?;
    let url = join_url(&upstream.base, &path)?;
    let document = job.proxy.load_document(upstream, url, "text/plain, */*").await?;
    String::from_utf8(document.body)
        .map_err(|_| Refusal::upstream("the index of the crate is no text"))
}

async fn index(job: &JobPackageHandler, name: &str) -> Result<Answer, Refusal> {
    job.check_package(SOURCE, name)?;
    let text = load_lines(job, name).await?;
    let mut hidden = HiddenVersions::default();
    let mut shown = String::with_capacity(text.len());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let Ok(entry) = serde_json::from_str::<IndexLine>(line) else { continue };
        if job.shows_version(&entry.facts(name), &mut hidden) {
            shown.push_str(line);
            shown.push('\n');
        }
    }
    hidden.check_any_shown()?;
    Ok(Answer::Document { body: shown.into_bytes(), content_type: "text/plain" })
}

async fn archive(job: &JobPackageHandler, name: &str, version: &str) -> Result<Answer, Refusal> {
    job.check_package(SOURCE, name)?;
    let text = load_lines(job, name).await?;
    let entry = text
        .lines()
        .filter_map(|line| serde_json::from_str::<IndexLine>(line).ok())
        .find(|entry| entry.vers == version)
        .ok_or_else(|| Refusal::not_found("the index does not name this version"))?;
    job.check_version(&entry.facts(name))?;
    let expected = ExpectedDigest::from_hex(DigestKind::Sha256, &entry.cksum)
        .ok_or_else(|| Refusal::upstream("the index names no SHA-256 of this version"))?;
    let url = download_url(job, name, version, &entry.cksum).await?;
    let upstream = &job.proxy.upstreams().crates;
    let file = job
        .proxy
        .load_checked_file(upstream, url, &expected)
        .await
        .map_err(|refusal| report_wrong_file(job, name, version, refusal))?;
    if job.rules.needs_licence() {
        let opened = job.proxy.store().open_file(&file.sha256);
        let read = spawn_blocking(move || opened.and_then(read_licence)).await;
        let licence = read.map_err(io::Error::other).flatten().ok().flatten();
        job.check_licence(SOURCE, name, version, licence.as_deref())?;
    }
    Ok(Answer::Package { file, package: name.to_owned(), version: version.to_owned() })
}

fn report_wrong_file(
    job: &JobPackageHandler,
    name: &str,
    version: &str,
    refusal: Refusal,
) -> Refusal {
    if refusal.status == hyper::StatusCode::FORBIDDEN {
        return job.refuse_package(SOURCE, name, version, refusal.reason);
    }
    refusal
}

/// Returns the address of an archive, by the template of the index.
async fn download_url(
    job: &JobPackageHandler,
    name: &str,
    version: &str,
    checksum: &str,
) -> Result<Url, Refusal> {
    let upstream = &job.proxy.upstreams().crates;
    let url = join_url(&upstream.base, "config.json")?;
    let document = job.proxy.load_document(upstream, url, "application/json").await?;
    let config: IndexConfig = serde_json::from_slice(&document.body)
        .map_err(|_| Refusal::upstream("the configuration of the index cannot be read"))?;
    expand_template(&config.dl, name, version, checksum)
        .and_then(|text| Url::parse(&text).ok())
        .ok_or_else(|| Refusal::upstream("the index names no address of archives"))
}

fn expand_template(template: &str, name: &str, version: &str, checksum: &str) -> Option<String> {
    let path = index_path(&name.to_ascii_lowercase())?;
    let (lower_prefix, _) = path.rsplit_once('/')?;
    let prefix = match name.len() {
        1 | 2 => lower_prefix.to_owned(),
        3 => format!("3/{}", name.get(..1)?),
        _ => format!("{}/{}", name.get(..2)?, name.get(2..4)?),
    };
    let markers = [
        ("{crate}", name),
        ("{version}", version),
        ("{prefix}", prefix.as_str()),
        ("{lowerprefix}", lower_prefix),
        ("{sha256-checksum}", checksum),
    ];
    if !markers.iter().any(|(marker, _)| template.contains(marker)) {
        return Some(format!("{}/{name}/{version}/download", template.trim_end_matches('/')));
    }
    Some(
        markers
            .iter()
            .fold(template.to_owned(), |text, (marker, value)| text.replace(marker, value)),
    )
}

/// Reads the licence of an archive from its manifest.
fn read_licence(file: File) -> io::Result<Option<String>> {
    let mut archive = tar::Archive::new(GzDecoder::new(file).take(MAX_SCANNED_BYTES));
    for member in archive.entries()? {
        let member = member?;
        let path = member.path()?.into_owned();
        let is_manifest = path.file_name() == Some("Cargo.toml".as_ref())
            && path.parent().and_then(Path::parent) == Some(Path::new(""));
        if !is_manifest {
            continue;
        }
        let mut text = String::new();
        member.take(MAX_MANIFEST_BYTES).read_to_string(&mut text)?;
        let manifest: toml::Table = text.parse().map_err(io::Error::other)?;
        let licence = manifest.get("package").and_then(|package| package.get("license"));
        return Ok(licence.and_then(toml::Value::as_str).map(str::to_owned));
    }
    Ok(None)
}

fn join_url(base: &Url, path: &str) -> Result<Url, Refusal> {
    base.join(path).map_err(|_| Refusal::upstream("the address of the registry is not usable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_has_one_place_in_the_index() {
        let paths = ["a", "AB", "abc", "Serde", "../x", "1a", ""].map(index_path);
        let expected = ["1/a", "2/ab", "3/a/abc", "se/rd/serde"].map(|it| Some(it.to_owned()));
        assert_eq!(paths[..4], expected);
        assert_eq!(paths[4..], [None, None, None]);
        assert!(is_index_path(&["se", "rd", "serde"], "serde"));
        assert!(!is_index_path(&["xx", "rd", "serde"], "serde"));
    }

    #[test]
    fn the_address_of_an_archive_follows_the_template() {
        let expand = |template| expand_template(template, "MyCrate", "1.0.0", "ab");
        assert_eq!(
            [
                expand("https://x/dl/"),
                expand("https://x/{lowerprefix}/{prefix}/{crate}-{version}.crate")
            ],
            [
                Some("https://x/dl/MyCrate/1.0.0/download".to_owned()),
                Some("https://x/my/cr/My/Cr/MyCrate-1.0.0.crate".to_owned()),
            ]
        );
    }
}

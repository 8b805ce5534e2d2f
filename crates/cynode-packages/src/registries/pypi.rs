//! Python packages: the simple index, files, and their metadata.

use cynode_core::environments::PackageSource;
use hyper::StatusCode;

use super::simple_index::{SimpleFile, SimpleIndex};
use crate::{
    error::Refusal,
    handler::{Answer, ClientFacts, HiddenVersions, JobPackageHandler},
    integrity::{DigestKind, ExpectedDigest},
    rules::VersionFacts,
    versions::normalize_name,
};

const SOURCE: PackageSource = PackageSource::Pypi;

/// Media type of the index as JSON.
const JSON_TYPE: &str = "application/vnd.pypi.simple.v1+json";

/// Media type of the index as HTML.
const HTML_TYPE: &str = "application/vnd.pypi.simple.v1+html";

const ACCEPT_INDEX: &str = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";

/// Maximum size of the metadata of a file.
const MAX_METADATA_BYTES: u64 = 8 << 20;

/// Answers a request below `/pypi/`.
pub(crate) async fn answer_request(
    job: &JobPackageHandler,
    path: &[&str],
    client: &ClientFacts,
) -> Result<Answer, Refusal> {
    match path {
        ["simple", name] | ["simple", name, ""] if is_project_name(name) => {
            index(job, &normalize_name(SOURCE, name), client).await
        }
        ["files", name, file] if is_project_name(name) => {
            let project = normalize_name(SOURCE, name);
            match file.strip_suffix(".metadata") {
                Some(of) => metadata(job, &project, of).await,
                None => package(job, &project, file).await,
            }
        }
        _ => Err(Refusal::forbidden(
            "the package proxy serves /pypi/simple/NAME/ and the files that it lists: uploads and searches are refused",
        )),
    }
}

fn is_project_name(name: &str) -> bool {
    (1..=200).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

async fn load_index(job: &JobPackageHandler, project: &str) -> Result<SimpleIndex, Refusal> {
    job.check_package(SOURCE, project)?;
    let upstream = &job.proxy.upstreams().pypi;
    let url = upstream
        .base
        .join(&format!("{project}/"))
        .map_err(|_| Refusal::upstream("the address of the registry is not usable"))?;
    let document = job.proxy.load_document(upstream, url, ACCEPT_INDEX).await?;
    SimpleIndex::parse(&document.body, &document.content_type, &document.url)
        .ok_or_else(|| Refusal::upstream("the index of the package cannot be read"))
}

async fn index(
    job: &JobPackageHandler,
    project: &str,
    client: &ClientFacts,
) -> Result<Answer, Refusal> {
    let mut index = load_index(job, project).await?;
    let mut hidden = HiddenVersions::default();
    index.files.retain(|file| {
        is_plain_file_name(&file.filename)
            && file.sha256.is_some()
            && job.shows_version(&facts_of(project, file, &version_of(project, file)), &mut hidden)
    });
    hidden.check_any_shown()?;
    let (body, content_type) = if client.accept.contains(JSON_TYPE) {
        (index.to_json(project), JSON_TYPE)
    } else if client.accept.contains(HTML_TYPE) {
        (index.to_html(project), HTML_TYPE)
    } else {
        (index.to_html(project), "text/html")
    };
    Ok(Answer::Document { body: body.into_bytes(), content_type })
}

fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 300
        && !name.starts_with('.')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._+!~".contains(c))
}

fn facts_of<'a>(project: &'a str, file: &'a SimpleFile, version: &'a str) -> VersionFacts<'a> {
    VersionFacts {
        source: SOURCE,
        package: project,
        version,
        published: file.upload_time.as_deref(),
        yanked: file.is_yanked,
    }
}

/// Returns the version in the name of a file; empty if there is none.
fn version_of(project: &str, file: &SimpleFile) -> String {
    let name = file.filename.as_str();
    let endings = [".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".zip", ".whl", ".egg", ".exe"];
    let stem = endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
    let is_built = name.ends_with(".whl") || name.ends_with(".egg");
    for (at, _) in stem.match_indices('-') {
        let (before, after) = stem.split_at(at);
        if normalize_name(SOURCE, before) == project {
            let version = after.trim_start_matches('-');
            let end = if is_built { version.find('-') } else { None };
            return version.get(..end.unwrap_or(version.len())).unwrap_or_default().to_owned();
        }
    }
    String::new()
}

async fn find_file(
    job: &JobPackageHandler,
    project: &str,
    name: &str,
) -> Result<(SimpleFile, String), Refusal> {
    let index = load_index(job, project).await?;
    let file = index
        .files
        .into_iter()
        .find(|file| file.filename == name)
        .ok_or_else(|| Refusal::not_found("the index does not name this file"))?;
    let version = version_of(project, &file);
    job.check_version(&facts_of(project, &file, &version))?;
    Ok((file, version))
}

async fn package(job: &JobPackageHandler, project: &str, name: &str) -> Result<Answer, Refusal> {
    let (file, version) = find_file(job, project, name).await?;
    if job.rules.needs_licence() {
        let licence = load_licence(job, &file).await;
        job.check_licence(SOURCE, project, &version, licence.as_deref())?;
    }
    let expected = file
        .sha256
        .as_deref()
        .and_then(|digest| ExpectedDigest::from_hex(DigestKind::Sha256, digest))
        .ok_or_else(|| Refusal::upstream("the index names no SHA-256 of this file"))?;
    let upstream = &job.proxy.upstreams().pypi;
    let loaded = job.proxy.load_checked_file(upstream, file.url, &expected).await;
    let file = loaded.map_err(|refusal| {
        if refusal.status == StatusCode::FORBIDDEN {
            return job.refuse_package(SOURCE, project, &version, refusal.reason);
        }
        refusal
    })?;
    Ok(Answer::Package { file, package: project.to_owned(), version })
}

async fn metadata(job: &JobPackageHandler, project: &str, name: &str) -> Result<Answer, Refusal> {
    let (file, _) = find_file(job, project, name).await?;
    load_metadata(job, &file)
        .await
        .unwrap_or_else(|| Err(Refusal::not_found("the index names no metadata of this file")))
        .map(Answer::File)
}

/// Loads the metadata that is beside a file, if the index names its digest.
async fn load_metadata(
    job: &JobPackageHandler,
    file: &SimpleFile,
) -> Option<Result<crate::proxy::StoredFile, Refusal>> {
    let digest = file.metadata_sha256.as_deref()?;
    let expected = ExpectedDigest::from_hex(DigestKind::Sha256, digest)?;
    let mut url = file.url.clone();
    url.set_path(&format!("{}.metadata", file.url.path()));
    let upstream = &job.proxy.upstreams().pypi;
    Some(job.proxy.load_checked_file(upstream, url, &expected).await)
}

async fn load_licence(job: &JobPackageHandler, file: &SimpleFile) -> Option<String> {
    let stored = load_metadata(job, file).await?.ok()?;
    let body = job.proxy.store().read_file(&stored.sha256, MAX_METADATA_BYTES).ok()?;
    licence_of_metadata(&String::from_utf8_lossy(&body))
}

/// Reads the licence from the header of a METADATA file: its expression, its classifiers, or its text if it is one line.
fn licence_of_metadata(text: &str) -> Option<String> {
    let header = text.split("\n\n").next().unwrap_or_default();
    let field = |name: &'static str| {
        header.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    if let Some(expression) = field("License-Expression").next() {
        return Some(expression.trim().to_owned());
    }
    let classifiers: Vec<&str> = field("Classifier")
        .filter(|it| it.starts_with("License :: "))
        .filter_map(|it| it.rsplit(" :: ").next())
        .filter_map(spdx_of_classifier)
        .collect();
    if !classifiers.is_empty() {
        return Some(classifiers.join(" OR "));
    }
    field("License").next().map(|it| it.trim().to_owned()).filter(|it| it.len() <= 100)
}

/// Returns the SPDX identifier of a classifier that names one licence.
fn spdx_of_classifier(name: &str) -> Option<&'static str> {
    Some(match name {
        "MIT License" => "MIT",
        "BSD License" => "BSD-3-Clause",
        "Apache Software License" => "Apache-2.0",
        "ISC License (ISCL)" => "ISC",
        "Mozilla Public License 2.0 (MPL 2.0)" => "MPL-2.0",
        "Python Software Foundation License" => "PSF-2.0",
        "The Unlicense (Unlicense)" => "Unlicense",
        "GNU General Public License v2 (GPLv2)" => "GPL-2.0-only",
        "GNU General Public License v2 or later (GPLv2+)" => "GPL-2.0-or-later",
        "GNU General Public License v3 (GPLv3)" => "GPL-3.0-only",
        "GNU General Public License v3 or later (GPLv3+)" => "GPL-3.0-or-later",
        "GNU Affero General Public License v3" => "AGPL-3.0-only",
        "GNU Affero General Public License v3 or later (AGPLv3+)" => "AGPL-3.0-or-later",
        "GNU Lesser General Public License v3 (LGPLv3)" => "LGPL-3.0-only",
        "GNU Lesser General Public License v3 or later (LGPLv3+)" => "LGPL-3.0-or-later",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_holds_its_version() {
        let version = |project: &str, filename: &str| {
            let file = SimpleFile {
                filename: filename.to_owned(),
                url: "https://x.example/".parse().unwrap(),
                sha256: None,
                requires_python: None,
                upload_time: None,
                is_yanked: false,
                metadata_sha256: None,
                bytes: None,
            };
            version_of(project, &file)
        };
        assert_eq!(
            [
                version("python-dotenv", "python_dotenv-1.1.0.tar.gz"),
                version("python-dotenv", "python-dotenv-1.1.0.tar.gz"),
                version("python-dotenv", "python_dotenv-1.1.0-py3-none-any.whl"),
                version("x", "x-1.0-rc1.zip"),
                version("x", "y-1.0.zip"),
            ],
            ["1.1.0", "1.1.0", "1.1.0", "1.0-rc1", ""]
        );
    }

    #[test]
    fn the_licence_is_in_the_header_of_the_metadata() {
        let licence = licence_of_metadata;
        assert_eq!(
            [
                licence("Name: x\nLicense-Expression: MIT OR Apache-2.0\n\nLicense: no\n"),
                licence("Classifier: License :: OSI Approved :: MIT License\n"),
                licence("Name: x\nLicense: BSD\n"),
                licence("Name: x\n\nLicense: BSD\n"),
            ],
            [
                Some("MIT OR Apache-2.0".to_owned()),
                Some("MIT".to_owned()),
                Some("BSD".to_owned()),
                None
            ]
        );
    }
}

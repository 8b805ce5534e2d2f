//! JavaScript packages: packuments with rewritten addresses, and tarballs.

use std::collections::{BTreeMap, BTreeSet};

use cynode_core::environments::PackageSource;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use url::Url;

use crate::{
    error::Refusal,
    handler::{Answer, ClientFacts, HiddenVersions, JobPackageHandler},
    integrity::{DigestKind, ExpectedDigest},
    proxy::IndexDocument,
    rules::VersionFacts,
    versions::{compare_versions, is_prerelease},
};

const SOURCE: PackageSource = PackageSource::Npm;

/// Media type of a packument without what only people read.
const ABBREVIATED: &str = "application/vnd.npm.install-v1+json";

const ACCEPT_ABBREVIATED: &str =
    "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8, */*";
const ACCEPT_FULL: &str = "application/json";

/// What a file needs of a packument.
#[derive(Deserialize)]
struct Packument {
    versions: BTreeMap<String, PackumentVersion>,
    #[serde(default)]
    time: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct PackumentVersion {
    dist: Distribution,
    #[serde(default)]
    license: Value,
    #[serde(default)]
    licenses: Value,
}

#[derive(Deserialize)]
struct Distribution {
    tarball: String,
    #[serde(default)]
    integrity: Option<String>,
    #[serde(default)]
    shasum: Option<String>,
}

impl Distribution {
    fn expected_digest(&self) -> Option<ExpectedDigest> {
        let strong = self.integrity.as_deref().and_then(ExpectedDigest::from_integrity);
        let weak = || ExpectedDigest::from_hex(DigestKind::Sha1, self.shasum.as_deref()?);
        strong.or_else(weak)
    }
}

/// Answers a request below `/npm/`.
pub(crate) async fn answer_request(
    job: &JobPackageHandler,
    path: &[&str],
    client: &ClientFacts,
) -> Result<Answer, Refusal> {
    let refuse = || {
        Refusal::forbidden(
            "the package proxy serves packages of npm only: login, search, audit and publishing are refused",
        )
    };
    if let Some(at) = path.iter().rposition(|segment| *segment == "-") {
        let (before, after) = path.split_at(at);
        let name = trailing_name(before).ok_or_else(refuse)?;
        return match after {
            ["-", file] if !file.is_empty() => tarball(job, &name, file).await,
            // Some registries put the scope before the file.
            ["-", scope, file] if scope.starts_with('@') => tarball(job, &name, file).await,
            _ => Err(refuse()),
        };
    }
    let path = path.strip_suffix(&[""]).unwrap_or(path);
    match path {
        [scope, name] if scope.starts_with('@') => {
            packument(job, &valid_name(&format!("{scope}/{name}")).ok_or_else(refuse)?, client)
                .await
        }
        [scope, name, version] if scope.starts_with('@') => {
            let name = valid_name(&format!("{scope}/{name}")).ok_or_else(refuse)?;
            manifest(job, &name, version, client).await
        }
        [name] => packument(job, &valid_name(name).ok_or_else(refuse)?, client).await,
        [name, version] => {
            manifest(job, &valid_name(name).ok_or_else(refuse)?, version, client).await
        }
        _ => Err(refuse()),
    }
}

fn valid_name(name: &str) -> Option<String> {
    let part = |text: &str| {
        !text.is_empty()
            && !text.starts_with(['.', '_'])
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._~".contains(c))
    };
    let valid = match name.strip_prefix('@') {
        Some(scoped) => {
            scoped.split_once('/').is_some_and(|(scope, name)| part(scope) && part(name))
        }
        None => part(name),
    };
    (valid && name.len() <= 214).then(|| name.to_owned())
}

/// Returns the name of the package at the end of a path.
fn trailing_name(path: &[&str]) -> Option<String> {
    match path {
        [.., scope, name] if scope.starts_with('@') => valid_name(&format!("{scope}/{name}")),
        [.., name] => valid_name(name),
        [] => None,
    }
}

async fn load_packument(
    job: &JobPackageHandler,
    name: &str,
    is_full: bool,
) -> Result<IndexDocument, Refusal> {
    job.check_package(SOURCE, name)?;
    let upstream = &job.proxy.upstreams().npm;
    let url = upstream
        .base
        .join(&format!("./{}", name.replace('/', "%2f")))
        .map_err(|_| Refusal::upstream("the address of the registry is not usable"))?;
    let accept = if is_full { ACCEPT_FULL } else { ACCEPT_ABBREVIATED };
    job.proxy.load_document(upstream, url, accept).await
}

fn needs_full_form(job: &JobPackageHandler) -> bool {
    job.rules.needs_age() || job.rules.needs_licence()
}

fn unreadable() -> Refusal {
    Refusal::upstream("the registry's answer about the package cannot be read")
}

/// Loads a packument for a client: without refused versions, with addresses of the proxy. Returns its place in memory, too.
async fn load_shown(
    job: &JobPackageHandler,
    name: &str,
    client: &ClientFacts,
) -> Result<(Value, Option<OwnedSemaphorePermit>), Refusal> {
    let is_full = needs_full_form(job) || !client.accept.contains(ABBREVIATED);
    let IndexDocument { body, turn, .. } = load_packument(job, name, is_full).await?;
    let mut document: Value = serde_json::from_slice(&body).map_err(|_| unreadable())?;
    drop(body);
    let times = document.get("time").and_then(Value::as_object).cloned().unwrap_or_default();
    let versions =
        document.get_mut("versions").and_then(Value::as_object_mut).ok_or_else(unreadable)?;
    let mut hidden = HiddenVersions::default();
    versions.retain(|version, manifest| {
        let facts = VersionFacts {
            source: SOURCE,
            package: name,
            version,
            published: times.get(version).and_then(Value::as_str),
            yanked: false,
        };
        if !job.shows_version(&facts, &mut hidden) {
            return false;
        }
        if let Some(address) = manifest.pointer_mut("/dist/tarball") {
            let file = address.as_str().and_then(file_of_address).unwrap_or_default();
            *address = Value::String(format!("{}/npm/{name}/-/{file}", client.base));
        }
        true
    });
    hidden.check_any_shown()?;
    let shown: BTreeSet<String> = versions.keys().cloned().collect();
    mend_tags(&mut document, &shown);
    if let Some(times) = document.get_mut("time").and_then(Value::as_object_mut) {
        times.retain(|version, _| {
            shown.contains(version) || version == "created" || version == "modified"
        });
    }
    Ok((document, turn))
}

/// Takes away tags of hidden versions; `latest` moves to the newest version that is shown.
fn mend_tags(document: &mut Value, shown: &BTreeSet<String>) {
    let Some(tags) = document.get_mut("dist-tags").and_then(Value::as_object_mut) else { return };
    let had_latest = tags.contains_key("latest");
    tags.retain(|_, version| version.as_str().is_some_and(|it| shown.contains(it)));
    if had_latest && !tags.contains_key("latest") {
        let newest = shown
            .iter()
            .max_by(|a, b| is_prerelease(b).cmp(&is_prerelease(a)).then(compare_versions(a, b)));
        if let Some(newest) = newest {
            tags.insert("latest".to_owned(), Value::String(newest.clone()));
        }
    }
}

async fn packument(
    job: &JobPackageHandler,
    name: &str,
    client: &ClientFacts,
) -> Result<Answer, Refusal> {
    let (document, _turn) = load_shown(job, name, client).await?;
    let content_type =
        if client.accept.contains(ABBREVIATED) { ABBREVIATED } else { "application/json" };
    Ok(Answer::Document { body: document.to_string().into_bytes(), content_type })
}

/// One version, by its number or by a tag.
async fn manifest(
    job: &JobPackageHandler,
    name: &str,
    version: &str,
    client: &ClientFacts,
) -> Result<Answer, Refusal> {
    let (document, _turn) = load_shown(job, name, client).await?;
    let tagged = document["dist-tags"][version].as_str().unwrap_or(version);
    let manifest = document["versions"]
        .get(tagged)
        .ok_or_else(|| Refusal::not_found("the registry does not have this version"))?;
    Ok(Answer::Document {
        body: manifest.to_string().into_bytes(),
        content_type: "application/json",
    })
}

/// Returns the name of the file of a tarball's address.
fn file_of_address(address: &str) -> Option<String> {
    let url = Url::parse(address).ok()?;
    let file = url.path_segments()?.next_back()?.to_owned();
    let plain = file.chars().all(|c| c.is_ascii_alphanumeric() || "-._~+".contains(c));
    (plain && !file.is_empty()).then_some(file)
}

async fn tarball(job: &JobPackageHandler, name: &str, file: &str) -> Result<Answer, Refusal> {
    let IndexDocument { body, turn, .. } = load_packument(job, name, needs_full_form(job)).await?;
    let packument: Packument = serde_json::from_slice(&body).map_err(|_| unreadable())?;
    // The file may take long, and others shall not wait for it.
    drop((body, turn));
    let (version, entry) = packument
        .versions
        .iter()
        .find(|(_, entry)| file_of_address(&entry.dist.tarball).as_deref() == Some(file))
        .ok_or_else(|| Refusal::not_found("the registry names no such file of the package"))?;
    job.check_version(&VersionFacts {
        source: SOURCE,
        package: name,
        version,
        published: packument.time.get(version).and_then(Value::as_str),
        yanked: false,
    })?;
    if job.rules.needs_licence() {
        job.check_licence(SOURCE, name, version, licence_of(entry).as_deref())?;
    }
    let expected = entry
        .dist
        .expected_digest()
        .ok_or_else(|| Refusal::upstream("the registry names no digest of this version"))?;
    let url = Url::parse(&entry.dist.tarball)
        .map_err(|_| Refusal::upstream("the registry names no address of the file"))?;
    let upstream = &job.proxy.upstreams().npm;
    let loaded = job.proxy.load_checked_file(upstream, url, &expected).await;
    let file = loaded.map_err(|refusal| {
        if refusal.status == StatusCode::FORBIDDEN {
            return job.refuse_package(SOURCE, name, version, refusal.reason);
        }
        refusal
    })?;
    Ok(Answer::Package { file, package: name.to_owned(), version: version.clone() })
}

/// Returns the licence in the forms that npm has had.
fn licence_of(entry: &PackumentVersion) -> Option<String> {
    let one =
        |value: &Value| value.as_str().or_else(|| value.get("type")?.as_str()).map(str::to_owned);
    one(&entry.license).or_else(|| {
        let alternatives: Vec<String> = entry.licenses.as_array()?.iter().filter_map(one).collect();
        (!alternatives.is_empty()).then(|| alternatives.join(" OR "))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_packages_are_checked_and_found_in_lock_file_addresses() {
        for name in ["qs", "@types/node", "lodash.merge"] {
            assert_eq!(valid_name(name).as_deref(), Some(name));
        }
        for name in ["", ".bin", "@a", "@a/", "a/b", "-/x", "a b"] {
            assert_eq!(valid_name(name), None, "{name}");
        }
        assert_eq!(trailing_name(&["mirror", "npm", "@a", "b"]).as_deref(), Some("@a/b"));
        assert_eq!(trailing_name(&[]), None);
    }

    #[test]
    fn a_tag_never_points_to_a_hidden_version() {
        let mut document =
            json!({ "dist-tags": { "latest": "2.0.0", "next": "3.0.0-rc.1", "old": "1.0.0" } });
        let shown = ["1.0.0", "1.10.0", "1.9.0", "3.0.0-rc.1"].map(str::to_owned).into();
        mend_tags(&mut document, &shown);
        assert_eq!(
            document["dist-tags"],
            json!({ "next": "3.0.0-rc.1", "old": "1.0.0", "latest": "1.10.0" })
        );
    }

    #[test]
    fn a_licence_has_had_many_forms() {
        let licence = |value: Value| {
            let mut entry = json!({ "dist": { "tarball": "x" } });
            entry.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            licence_of(&serde_json::from_value(entry).unwrap())
        };
        assert_eq!(
            [
                licence(json!({ "license": "MIT" })),
                licence(json!({ "license": { "type": "ISC" } })),
                licence(json!({ "licenses": [{ "type": "MIT" }, { "type": "GPL-2.0" }] })),
                licence(json!({})),
            ],
            [
                Some("MIT".to_owned()),
                Some("ISC".to_owned()),
                Some("MIT OR GPL-2.0".to_owned()),
                None
            ]
        );
    }
}

//! Debian packages: indexes below `dists/` and files below `pool/` of each source of apt. apt checks signatures and digests itself.

use cynode_core::environments::PackageSource;

use crate::{
    error::Refusal,
    handler::{Answer, JobPackageHandler},
    integrity::{DigestKind, ExpectedDigest},
    rules::VersionFacts,
};

const SOURCE: PackageSource = PackageSource::Debian;

/// Maximum size of a release file.
const MAX_RELEASE_BYTES: u64 = 16 << 20;

/// Answers a request below `/debian/`.
pub(crate) async fn answer_request(
    job: &JobPackageHandler,
    path: &[&str],
) -> Result<Answer, Refusal> {
    let refuse = || {
        Refusal::forbidden("the package proxy serves dists/ and pool/ of the sources of apt only")
    };
    let (number, rest) = path.split_first().ok_or_else(refuse)?;
    let archive = number.parse::<usize>().ok().and_then(|it| job.proxy.upstreams().debian.get(it));
    let upstream = &archive.ok_or_else(refuse)?.upstream;
    let mut url = upstream.base.clone();
    {
        let mut segments = url.path_segments_mut().map_err(|()| refuse())?;
        segments.pop_if_empty().extend(rest);
    }
    match rest {
        ["dists", suite, .., "by-hash", "SHA256", digest] if is_index_path(rest) => {
            let expected =
                ExpectedDigest::from_hex(DigestKind::Sha256, digest).ok_or_else(refuse)?;
            check_release_names(job, number, suite, digest).await?;
            job.proxy.load_checked_file(upstream, url, &expected).await.map(Answer::File)
        }
        ["dists", ..] if is_index_path(rest) => {
            job.proxy.load_changing_file(upstream, url).await.map(Answer::File)
        }
        ["pool", .., name] if is_pool_path(rest) => {
            let (package, version) = split_file_name(name);
            job.check_version(&VersionFacts {
                source: SOURCE,
                package: &package,
                version: &version,
                published: None,
                yanked: false,
            })?;
            let file = job.proxy.load_lasting_file(upstream, url).await?;
            Ok(Answer::Package { file, package, version })
        }
        _ => Err(refuse()),
    }
}

/// Refuses a digest that the release file of the suite does not name.
async fn check_release_names(
    job: &JobPackageHandler,
    number: &str,
    suite: &str,
    digest: &str,
) -> Result<(), Refusal> {
    let archive = number.parse::<usize>().ok().and_then(|it| job.proxy.upstreams().debian.get(it));
    let upstream = &archive.ok_or_else(|| Refusal::not_found("there is no such source"))?.upstream;
    let url = upstream
        .base
        .join(&format!("dists/{suite}/InRelease"))
        .map_err(|_| Refusal::upstream("the address of the archive is not usable"))?;
    let release = job.proxy.load_changing_file(upstream, url).await?;
    let text = job
        .proxy
        .store()
        .read_file(&release.sha256, MAX_RELEASE_BYTES)
        .map_err(|error| Refusal::disk(&error))?;
    let text = String::from_utf8_lossy(&text);
    if text.split_ascii_whitespace().any(|word| word == digest) {
        return Ok(());
    }
    Err(Refusal::not_found("the release file does not name this index: update again"))
}

fn is_word(text: &str, max_chars: usize, more: &str) -> bool {
    !text.is_empty()
        && text.len() <= max_chars
        && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

/// Returns whether a path is that of an index: a place for names that archives have, not for other data.
fn is_index_path(path: &[&str]) -> bool {
    let ["dists", suite, rest @ ..] = path else { return false };
    let is_release =
        |name: &str| (3..=12).contains(&name.len()) && name.chars().all(|c| c.is_ascii_lowercase());
    let endings = ["-updates", "-security", "-backports", "-proposed-updates"];
    let suite = endings.iter().find_map(|ending| suite.strip_suffix(ending)).unwrap_or(suite);
    if !is_release(suite) {
        return false;
    }
    let is_folder = |name: &str| {
        matches!(name, "i18n" | "dep11" | "cnf" | "source")
            || name.strip_prefix("binary-").is_some_and(|it| is_word(it, 16, "-"))
    };
    match rest {
        ["InRelease" | "Release" | "Release.gpg"] => true,
        [component, folder, name] => {
            is_word(component, 20, "-") && is_folder(folder) && is_index_name(name)
        }
        [component, folder, "by-hash", "SHA256", _] => {
            is_word(component, 20, "-") && is_folder(folder)
        }
        _ => false,
    }
}

fn is_index_name(name: &str) -> bool {
    let packed = [".xz", ".gz", ".bz2", ".lzma", ".zst"];
    let name = packed.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
    let named = ["Translation-", "Components-", "Commands-", "icons-"];
    matches!(name, "Packages" | "Sources" | "Release")
        || named
            .iter()
            .any(|it| name.strip_prefix(it).is_some_and(|rest| is_word(rest, 20, "-_@.")))
}

/// Returns whether a path is that of a binary package: `pool/COMPONENT/PREFIX/SOURCE/NAME_VERSION_ARCHITECTURE.deb`.
fn is_pool_path(path: &[&str]) -> bool {
    let (source, prefix, file) = match path {
        ["pool", component, prefix, source, file]
        | ["pool", "updates", component, prefix, source, file]
            if is_word(component, 20, "-") =>
        {
            (source, prefix, file)
        }
        _ => return false,
    };
    let is_source = is_word(source, 80, "+-.") && source.starts_with(prefix);
    let is_prefix = prefix.len() == if source.starts_with("lib") { 4 } else { 1 };
    let Some(stem) = file.strip_suffix(".deb") else { return false };
    let parts: Vec<&str> = stem.split('_').collect();
    let is_file = match parts.as_slice() {
        [name, version, architecture] => {
            is_word(name, 80, "+-.")
                && is_word(version, 80, "+-.~:")
                && is_word(architecture, 16, "-")
        }
        _ => false,
    };
    is_source && is_prefix && is_file
}

/// Takes `name_version_architecture.deb` apart. A file of another form is its own name.
fn split_file_name(name: &str) -> (String, String) {
    let mut parts = name.split('_');
    match (parts.next(), parts.next(), name.ends_with(".deb")) {
        (Some(package), Some(version), true) => (package.to_owned(), version.to_owned()),
        _ => (name.to_owned(), String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_that_of_an_index_or_of_a_package_and_carries_nothing_else() {
        let is = |path: &str| {
            let path: Vec<&str> = path.split('/').collect();
            is_index_path(&path) || is_pool_path(&path)
        };
        for path in [
            "dists/bookworm/InRelease",
            "dists/bookworm-security/main/binary-amd64/Packages.xz",
            "dists/bookworm/main/i18n/Translation-en.bz2",
            "dists/bookworm/main/binary-all/by-hash/SHA256/ab",
            "pool/main/c/cmake/cmake_3.25.1-1_amd64.deb",
            "pool/updates/main/libf/libfoo/libfoo-dev_1.0+deb12u1~1_amd64.deb",
        ] {
            assert!(is(path), "{path}");
        }
        for path in [
            "dists/some-data/InRelease",
            "dists/bookworm/data",
            "dists/bookworm/main/data/Packages",
            "dists/bookworm/main/binary-amd64/data",
            "pool/data",
            "pool/main/x/cmake/cmake_1_amd64.deb",
            "pool/main/c/cmake/data",
            "pool/main/c/cmake/cmake_1.orig.tar.gz",
        ] {
            assert!(!is(path), "{path}");
        }
    }

    #[test]
    fn the_name_of_a_file_holds_package_and_version() {
        let split = |name| split_file_name(name);
        assert_eq!(
            [split("cmake_3.25.1-1_amd64.deb"), split("cjson_1.7.18.orig.tar.gz")],
            [
                ("cmake".to_owned(), "3.25.1-1".to_owned()),
                ("cjson_1.7.18.orig.tar.gz".to_owned(), String::new()),
            ]
        );
    }
}

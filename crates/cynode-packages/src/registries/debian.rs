//! Debian packages: indexes below `dists/` and files below `pool/` of each source of apt. apt checks signatures and digests itself.

use cynode_core::environments::PackageSource;

use crate::{
    error::Refusal,
    handler::{Answer, JobPackageHandler},
    integrity::{DigestKind, ExpectedDigest},
    rules::VersionFacts,
};

const SOURCE: PackageSource = PackageSource::Debian;

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
        ["dists", .., "by-hash", "SHA256", digest] => {
            let expected =
                ExpectedDigest::from_hex(DigestKind::Sha256, digest).ok_or_else(refuse)?;
            job.proxy.load_checked_file(upstream, url, &expected).await.map(Answer::File)
        }
        ["dists", .., name] if !name.is_empty() => {
            job.proxy.load_changing_file(upstream, url).await.map(Answer::File)
        }
        ["pool", .., name] if !name.is_empty() => {
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

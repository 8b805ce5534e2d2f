//! Package policy of a job: forbidden packages, minimum age, licences, yanked versions, advisories.

use std::{collections::BTreeSet, sync::Arc};

use cynode_core::environments::{PackagePolicy, PackageSource};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{advisories::Advisories, versions::normalize_name};

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

/// Maximum length of a licence that is evaluated. A package decides about its text, and each bracket takes a part of the stack.
const MAX_LICENCE_BYTES: usize = 1000;

/// What the index says about a version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VersionFacts<'a> {
    pub(crate) source: PackageSource,
    pub(crate) package: &'a str,
    pub(crate) version: &'a str,
    /// When it was published, as the index writes it.
    pub(crate) published: Option<&'a str>,
    pub(crate) yanked: bool,
}

/// Why a version is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionRefusal {
    pub(crate) reason: String,
    /// Whether the registry itself withdrew it, so that nobody needs to be told that it is hidden.
    pub(crate) is_withdrawn: bool,
}

/// The rules of a job.
#[derive(Debug)]
pub(crate) struct PackageRules {
    policy: PackagePolicy,
    locked: BTreeSet<String>,
    advisories: Arc<Advisories>,
}

impl PackageRules {
    /// Makes the rules.
    pub(crate) const fn new(
        policy: PackagePolicy,
        locked: BTreeSet<String>,
        advisories: Arc<Advisories>,
    ) -> Self {
        Self { policy, locked, advisories }
    }

    /// Returns whether the rules need to know when a version was published.
    pub(crate) const fn needs_age(&self) -> bool {
        self.policy.min_age_days > 0
    }

    /// Returns whether the rules need to know the licence of a version.
    pub(crate) const fn needs_licence(&self) -> bool {
        !self.policy.forbidden_licences.is_empty()
    }

    /// Returns why no version of a package is allowed, if none is.
    pub(crate) fn package_refusal(&self, source: PackageSource, package: &str) -> Option<String> {
        let forbidden = self.forbidden_entries(source, package).any(|version| version.is_none());
        forbidden.then(|| format!("policy forbids the package `{}:{package}`", source.as_str()))
    }

    /// Returns why a version is not allowed, if it is not.
    pub(crate) fn version_refusal(
        &self,
        facts: &VersionFacts<'_>,
        now: i64,
    ) -> Option<VersionRefusal> {
        let VersionFacts { source, package, version, .. } = *facts;
        let refuse = |reason| Some(VersionRefusal { reason, is_withdrawn: false });
        if let Some(reason) = self.package_refusal(source, package) {
            return refuse(reason);
        }
        let name = format!("{}:{package} {version}", source.as_str());
        if self.forbidden_entries(source, package).any(|it| it == Some(version)) {
            return refuse(format!("policy forbids the version `{name}`"));
        }
        if let Some(id) = self.advisories.find(source, package, version) {
            return refuse(format!("`{name}` has the advisory {id}"));
        }
        if facts.yanked
            && !self.locked.contains(&format!("{}:{package}=={version}", source.as_str()))
        {
            let reason = format!("`{name}` was yanked: choose another version");
            return Some(VersionRefusal { reason, is_withdrawn: true });
        }
        self.age_refusal(facts, now, &name).and_then(refuse)
    }

    fn age_refusal(&self, facts: &VersionFacts<'_>, now: i64, name: &str) -> Option<String> {
        let days = self.policy.min_age_days;
        // A Debian archive has its own way from upload to release.
        if days == 0 || facts.source == PackageSource::Debian {
            return None;
        }
        let published = facts.published.and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
        let Some(published) = published else {
            return Some(format!(
                "the age of `{name}` is unknown, and policy wants at least {days} days"
            ));
        };
        let age = now.saturating_sub(published.unix_timestamp());
        (age < i64::from(days).saturating_mul(SECONDS_PER_DAY)).then(|| {
            format!(
                "`{name}` is {} days old, and policy wants at least {days}",
                age.max(0) / SECONDS_PER_DAY
            )
        })
    }

    /// Returns why a licence is not allowed, if it is not. An unknown licence is allowed.
    pub(crate) fn licence_refusal(&self, licence: &str) -> Option<String> {
        if licence.len() > MAX_LICENCE_BYTES {
            return Some("the licence is too long to be compared with policy: that".to_owned());
        }
        let forbidden =
            |id: &str| self.policy.forbidden_licences.iter().any(|it| it.eq_ignore_ascii_case(id));
        (!is_expression_allowed(licence, &forbidden))
            .then(|| format!("policy forbids the licence `{licence}`"))
    }

    /// Returns the entries about a package: all versions, or one.
    fn forbidden_entries(
        &self,
        source: PackageSource,
        package: &str,
    ) -> impl Iterator<Item = Option<&str>> {
        let package = normalize_name(source, package);
        self.policy.forbidden.iter().filter_map(move |entry| {
            let rest = entry.strip_prefix(source.as_str())?.strip_prefix(':')?;
            let (name, version) = match rest.split_once("==") {
                Some((name, version)) => (name, Some(version)),
                None => (rest, None),
            };
            (normalize_name(source, name) == package).then_some(version)
        })
    }
}

/// Evaluates an SPDX expression: one alternative of `OR` must be allowed, and all parts of `AND`.
fn is_expression_allowed(expression: &str, forbidden: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let mut allowed = true;
    // What comes after a whole expression is no SPDX; each part must then be allowed.
    while at < tokens.len() {
        let before = at;
        allowed &= parse_alternatives(&tokens, &mut at, forbidden);
        if at == before {
            at += 1;
        }
    }
    allowed
}

fn parse_alternatives(tokens: &[&str], at: &mut usize, forbidden: &dyn Fn(&str) -> bool) -> bool {
    let mut allowed = parse_conjunction(tokens, at, forbidden);
    while tokens.get(*at).is_some_and(|token| token.eq_ignore_ascii_case("or")) {
        *at += 1;
        let other = parse_conjunction(tokens, at, forbidden);
        allowed |= other;
    }
    allowed
}

fn parse_conjunction(tokens: &[&str], at: &mut usize, forbidden: &dyn Fn(&str) -> bool) -> bool {
    let mut allowed = parse_term(tokens, at, forbidden);
    while tokens.get(*at).is_some_and(|token| token.eq_ignore_ascii_case("and")) {
        *at += 1;
        let other = parse_term(tokens, at, forbidden);
        allowed &= other;
    }
    allowed
}

fn parse_term(tokens: &[&str], at: &mut usize, forbidden: &dyn Fn(&str) -> bool) -> bool {
    let Some(token) = tokens.get(*at) else { return true };
    if *token == "(" {
        *at += 1;
        let allowed = parse_alternatives(tokens, at, forbidden);
        if tokens.get(*at) == Some(&")") {
            *at += 1;
        }
        return allowed;
    }
    if *token == ")" {
        return true;
    }
    *at += 1;
    if tokens.get(*at).is_some_and(|token| token.eq_ignore_ascii_case("with")) {
        *at += 2;
    }
    !forbidden(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn rules(policy: PackagePolicy) -> PackageRules {
        let locked = BTreeSet::from(["pypi:x==3".to_owned()]);
        PackageRules::new(policy, locked, Arc::new(Advisories::default()))
    }

    fn facts<'a>(package: &'a str, version: &'a str) -> VersionFacts<'a> {
        let source = PackageSource::Pypi;
        VersionFacts { source, package, version, published: None, yanked: false }
    }

    #[test]
    fn what_policy_forbids_is_refused_with_the_reason() {
        let rules = rules(PackagePolicy {
            forbidden: ["pypi:Left_Pad", "pypi:requests==2.0", "npm:x"].map(str::to_owned).to_vec(),
            ..PackagePolicy::default()
        });
        let reason = |facts: VersionFacts<'_>| Some(rules.version_refusal(&facts, NOW)?.reason);
        assert_eq!(
            [
                reason(facts("left-pad", "1")),
                reason(facts("requests", "2.0")),
                reason(facts("requests", "2.1")),
                reason(facts("x", "1")),
                reason(VersionFacts { yanked: true, ..facts("x", "1") }),
                reason(VersionFacts { yanked: true, ..facts("x", "3") }),
            ],
            [
                Some("policy forbids the package `pypi:left-pad`".to_owned()),
                Some("policy forbids the version `pypi:requests 2.0`".to_owned()),
                None,
                None,
                Some("`pypi:x 1` was yanked: choose another version".to_owned()),
                None,
            ]
        );
    }

    #[test]
    fn a_version_must_have_its_age_and_an_unknown_age_is_too_young() {
        let rules = rules(PackagePolicy { min_age_days: 7, ..PackagePolicy::default() });
        let reason = |published| {
            let facts = VersionFacts { published, ..facts("x", "1") };
            Some(rules.version_refusal(&facts, NOW)?.reason)
        };
        assert_eq!(
            [
                reason(Some("2027-01-01T00:00:00Z")),
                reason(Some("2027-01-13T08:00:00+00:00")),
                reason(None),
                reason(Some("soon")),
            ],
            [
                None,
                Some("`pypi:x 1` is 2 days old, and policy wants at least 7".to_owned()),
                Some(
                    "the age of `pypi:x 1` is unknown, and policy wants at least 7 days".to_owned()
                ),
                Some(
                    "the age of `pypi:x 1` is unknown, and policy wants at least 7 days".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn a_licence_is_refused_unless_an_alternative_is_allowed() {
        let rules = rules(PackagePolicy {
            forbidden_licences: vec!["GPL-3.0-only".to_owned()],
            ..PackagePolicy::default()
        });
        for (licence, allowed) in [
            ("MIT", true),
            ("gpl-3.0-only", false),
            ("MIT OR GPL-3.0-only", true),
            ("MIT/GPL-3.0-only", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT OR (Apache-2.0 AND GPL-3.0-only)", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0-only WITH x", false),
            ("", true),
        ] {
            assert_eq!(rules.licence_refusal(licence).is_none(), allowed, "{licence}");
        }
    }
}

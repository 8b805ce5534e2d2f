//! Validation of URLs that a user or an agent supplies, before their names are resolved.

use url::Url;

use crate::ssrf::is_private_host;

/// Exceptions to the default policy: public addresses, `https`, no fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UrlPolicy {
    /// Allows addresses that are not globally routable.
    pub allow_private: bool,
    /// Allows `http`.
    pub allow_plaintext: bool,
    /// Allows a fragment. A client never sends the fragment.
    pub allow_fragment: bool,
}

/// Reason for rejecting a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The scheme is neither `http` nor `https`.
    #[error("the address is not http or https")]
    Scheme,
    /// The URL holds a user name or a password, which is visible to every reader of the URL.
    #[error("the address holds a name or a password: give the secret by itself")]
    Credentials,
    /// The URL has a fragment.
    #[error("the address has a fragment")]
    Fragment,
    /// The URL has no host.
    #[error("the address has no host")]
    NoHost,
    /// The host is an address that is not globally routable.
    #[error("the address is not a public one")]
    PrivateAddress,
    /// The scheme is `http`, so the request would not be encrypted.
    #[error("a public address is https")]
    Plaintext,
}

/// Validates a URL against a policy. A name passes: [`crate::ssrf::PublicResolver`] checks the addresses that it resolves to.
pub fn validate_public_url(url: &Url, policy: UrlPolicy) -> Result<(), UrlError> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(UrlError::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(UrlError::Credentials);
    }
    if url.fragment().is_some() && !policy.allow_fragment {
        return Err(UrlError::Fragment);
    }
    if url.host().is_none() {
        return Err(UrlError::NoHost);
    }
    if is_private_host(url) && !policy.allow_private {
        return Err(UrlError::PrivateAddress);
    }
    if url.scheme() == "http" && !policy.allow_plaintext {
        return Err(UrlError::Plaintext);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_public_and_encrypted_unless_the_policy_allows_more() {
        let lenient =
            UrlPolicy { allow_private: true, allow_plaintext: true, allow_fragment: false };
        let check = |text: &str, policy| validate_public_url(&text.parse().unwrap(), policy);
        for (text, strict, anywhere) in [
            ("https://example.com/hook?x=1", Ok(()), Ok(())),
            ("https://93.184.216.34/", Ok(()), Ok(())),
            ("http://example.com/", Err(UrlError::Plaintext), Ok(())),
            ("https://127.0.0.1/", Err(UrlError::PrivateAddress), Ok(())),
            ("https://2130706433/", Err(UrlError::PrivateAddress), Ok(())),
            ("https://0x7f.1/", Err(UrlError::PrivateAddress), Ok(())),
            ("http://169.254.169.254/latest", Err(UrlError::PrivateAddress), Ok(())),
            ("https://[::1]/", Err(UrlError::PrivateAddress), Ok(())),
            ("https://[::ffff:10.0.0.1]/", Err(UrlError::PrivateAddress), Ok(())),
            ("https://a:b@example.com/", Err(UrlError::Credentials), Err(UrlError::Credentials)),
            ("https://example.com/#x", Err(UrlError::Fragment), Err(UrlError::Fragment)),
            ("file:///etc/passwd", Err(UrlError::Scheme), Err(UrlError::Scheme)),
            ("gopher://example.com/", Err(UrlError::Scheme), Err(UrlError::Scheme)),
        ] {
            let found = (check(text, UrlPolicy::default()), check(text, lenient));
            assert_eq!(found, (strict, anywhere), "{text}");
        }
    }

    #[test]
    fn each_permission_of_a_policy_stands_alone() {
        let check = |text: &str, policy| validate_public_url(&text.parse().unwrap(), policy);
        let plaintext = UrlPolicy { allow_plaintext: true, ..UrlPolicy::default() };
        assert_eq!(check("http://example.com/", plaintext), Ok(()));
        assert_eq!(check("http://10.0.0.1/", plaintext), Err(UrlError::PrivateAddress));
        let private = UrlPolicy { allow_private: true, ..UrlPolicy::default() };
        assert_eq!(check("https://10.0.0.1/", private), Ok(()));
        assert_eq!(check("http://10.0.0.1/", private), Err(UrlError::Plaintext));
        let fragment = UrlPolicy { allow_fragment: true, ..UrlPolicy::default() };
        assert_eq!(check("https://example.com/#x", fragment), Ok(()));
    }
}

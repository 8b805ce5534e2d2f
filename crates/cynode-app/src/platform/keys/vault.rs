//! Master key in a key management service that speaks the transit protocol of Vault and `OpenBao`. The master key never leaves
//! the service; it wraps and unwraps the keys of the installation at their start.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use cynode_net::transport::check_transport;
use data_encoding::BASE64;
use reqwest::{Certificate, Client, Method, redirect::Policy};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use url::Url;

use super::master_key::{MasterKeyError, MasterKeyFuture, MasterKeyService};

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of an answer.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Where the master key is.
#[derive(Clone, Debug)]
pub struct VaultOptions {
    /// Address of the service, without the path of its API.
    pub address: Url,
    /// Mount of the transit engine.
    pub mount: String,
    /// Name of the key. Its type must be `aes256-gcm96` or `chacha20-poly1305`.
    pub key: String,
    /// File with the token. It is read for every request, so that an agent can renew it.
    pub token_file: PathBuf,
    /// Namespace of the service, if it has any.
    pub namespace: Option<String>,
    /// File with the certificates of the authorities of the service, PEM. Without it those of the machine are used.
    pub ca_file: Option<PathBuf>,
    /// Whether the token and the keys may leave the machine in clear text.
    pub insecure: bool,
}

/// Client of the transit engine.
pub struct VaultTransit {
    client: Client,
    options: VaultOptions,
}

impl VaultTransit {
    /// Creates the client. Names that would lead to another path are refused.
    pub fn new(options: VaultOptions) -> Result<Self, MasterKeyError> {
        let is_name = |text: &str| {
            let good = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
            !text.is_empty() && text.len() <= 64 && text.bytes().all(good)
        };
        if !options.mount.split('/').all(is_name) || !is_name(&options.key) {
            let rule = "mount and key have letters, digits, `-` and `_`";
            return Err(MasterKeyError::Unavailable(rule.into()));
        }
        // The answers hold keys in the clear, and the requests a token that opens them.
        check_transport(options.address.as_str(), options.insecure)
            .map_err(|error| MasterKeyError::Unavailable(error.to_string()))?;
        let mut builder = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(REQUEST_TIMEOUT / 2)
            .timeout(REQUEST_TIMEOUT);
        if let Some(file) = &options.ca_file {
            builder = builder.tls_certs_only(read_authorities(file)?);
        }
        let client =
            builder.build().map_err(|error| MasterKeyError::Unavailable(error.to_string()))?;
        Ok(Self { client, options })
    }

    fn version_prefix(&self) -> String {
        format!("vault:{}/{}:v", self.options.mount, self.options.key)
    }

    /// Returns the number of a version of this key.
    fn parse_version(&self, version: &str) -> Result<u64, MasterKeyError> {
        let number =
            version.strip_prefix(&self.version_prefix()).and_then(|text| text.parse().ok());
        number.ok_or_else(|| MasterKeyError::UnknownVersion(version.to_owned()))
    }

    async fn read_token(&self) -> Result<SecretString, MasterKeyError> {
        let file = &self.options.token_file;
        let text = tokio::fs::read_to_string(file).await.map_err(|error| {
            MasterKeyError::Unavailable(format!("cannot read {}: {error}", file.display()))
        })?;
        Ok(text.trim().to_owned().into())
    }

    /// Sends a request. Returns the data of the answer.
    async fn send_request(
        &self,
        method: Method,
        action: &str,
        suffix: &str,
        body: Option<Value>,
    ) -> Result<Value, MasterKeyError> {
        let VaultOptions { address, mount, key, namespace, .. } = &self.options;
        let base = address.as_str().trim_end_matches('/');
        let url = format!("{base}/v1/{mount}/{action}/{key}{suffix}");
        let token = self.read_token().await?;
        let mut request =
            self.client.request(method, url).header("x-vault-token", token.expose_secret());
        if let Some(namespace) = namespace {
            request = request.header("x-vault-namespace", namespace);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let failed = |what: &str| MasterKeyError::Unavailable(format!("{action}: {what}"));
        let mut answer = request.send().await.map_err(|error| {
            failed(if error.is_timeout() { "no answer in time" } else { "no connection" })
        })?;
        let status = answer.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|_| failed("the connection broke"))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_ANSWER_BYTES {
                return Err(failed("the answer is too long"));
            }
        }
        if !status.is_success() {
            // The answer may repeat what was sent, so only its status is reported.
            return Err(failed(&format!("the service answered with {status}")));
        }
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        let answer: Value =
            serde_json::from_slice(&bytes).map_err(|_| failed("the answer is no JSON"))?;
        Ok(answer.get("data").cloned().unwrap_or_default())
    }

    async fn latest_version(&self) -> Result<String, MasterKeyError> {
        let number = self.read_number("latest_version").await?;
        Ok(format!("{}{number}", self.version_prefix()))
    }

    /// Reads a number from the description of the key.
    async fn read_number(&self, name: &str) -> Result<u64, MasterKeyError> {
        let data = self.send_request(Method::GET, "keys", "", None).await?;
        data.get(name).and_then(Value::as_u64).ok_or_else(|| {
            MasterKeyError::Unavailable(format!("the service does not tell `{name}` of its key"))
        })
    }
}

impl MasterKeyService for VaultTransit {
    fn current_version(&self) -> MasterKeyFuture<'_, String> {
        Box::pin(self.latest_version())
    }

    fn next_version(&self) -> MasterKeyFuture<'_, String> {
        Box::pin(async move {
            self.send_request(Method::POST, "keys", "/rotate", Some(json!({}))).await?;
            self.latest_version().await
        })
    }

    fn wrap_key<'a>(
        &'a self,
        version: &'a str,
        context: &'a [u8],
        material: &'a [u8],
    ) -> MasterKeyFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let body = json!({
                "plaintext": BASE64.encode(material),
                "associated_data": BASE64.encode(context),
                "key_version": self.parse_version(version)?,
            });
            let data = self.send_request(Method::POST, "encrypt", "", Some(body)).await?;
            let wrapped = data.get("ciphertext").and_then(Value::as_str).ok_or_else(|| {
                MasterKeyError::Unavailable("the service returned no ciphertext".into())
            })?;
            Ok(wrapped.as_bytes().to_vec())
        })
    }

    fn unwrap_key<'a>(
        &'a self,
        version: &'a str,
        context: &'a [u8],
        wrapped: &'a [u8],
    ) -> MasterKeyFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let number = self.parse_version(version)?;
            let text = std::str::from_utf8(wrapped).map_err(|_| MasterKeyError::DoesNotOpen)?;
            // The row names the version; what is wrapped must name the same one.
            if !text.starts_with(&format!("vault:v{number}:")) {
                return Err(MasterKeyError::DoesNotOpen);
            }
            let body = json!({ "ciphertext": text, "associated_data": BASE64.encode(context) });
            let data = self.send_request(Method::POST, "decrypt", "", Some(body)).await?;
            let opened = data.get("plaintext").and_then(Value::as_str);
            let opened = opened.and_then(|text| BASE64.decode(text.as_bytes()).ok());
            opened.ok_or(MasterKeyError::DoesNotOpen)
        })
    }

    fn finish_rotation<'a>(&'a self, version: &'a str) -> MasterKeyFuture<'a, ()> {
        Box::pin(async move {
            let number = self.parse_version(version)?;
            let body =
                json!({ "min_decryption_version": number, "min_encryption_version": number });
            self.send_request(Method::POST, "keys", "/config", Some(body)).await.map(drop)
        })
    }

    fn is_promoted<'a>(&'a self, version: &'a str) -> MasterKeyFuture<'a, bool> {
        Box::pin(async move {
            let number = self.parse_version(version)?;
            // Until then versions before it still open: the end of the rotation is missing.
            Ok(self.read_number("min_decryption_version").await? >= number)
        })
    }

    fn owns_version(&self, version: &str) -> bool {
        self.parse_version(version).is_ok()
    }

    fn place_of(&self, _: &str) -> &'static str {
        "vault"
    }
}

fn read_authorities(file: &Path) -> Result<Vec<Certificate>, MasterKeyError> {
    let unusable = |error: &dyn fmt::Display| {
        MasterKeyError::Unavailable(format!("cannot use {}: {error}", file.display()))
    };
    let pem = std::fs::read(file).map_err(|error| unusable(&error))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(&error))?;
    if certificates.is_empty() { Err(unusable(&"it has no certificate")) } else { Ok(certificates) }
}

impl fmt::Debug for VaultTransit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VaultTransit").field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(address: &str, insecure: bool) -> Result<VaultTransit, MasterKeyError> {
        VaultTransit::new(VaultOptions {
            address: address.parse().unwrap(),
            mount: "transit".to_owned(),
            key: "cynode".to_owned(),
            token_file: PathBuf::new(),
            namespace: None,
            ca_file: None,
            insecure,
        })
    }

    #[test]
    fn keys_leave_the_machine_in_clear_text_only_if_somebody_says_so() {
        for address in ["https://vault.example:8200", "http://127.0.0.1:8200", "http://[::1]/"] {
            assert!(open(address, false).is_ok(), "{address}");
        }
        for address in ["http://vault.example:8200", "http://10.0.0.7:8200"] {
            assert!(open(address, false).is_err(), "{address}");
            assert!(open(address, true).is_ok(), "{address}");
        }
    }
}

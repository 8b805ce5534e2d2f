//! Encryption of backups by age. Each backup has a key of its own; only that key is encrypted to the recipients, or by the passphrase.

use std::{
    fs,
    io::{Read as _, Write},
    iter,
    path::{Path, PathBuf},
};

use age::{Decryptor, Encryptor, scrypt, stream::StreamWriter, x25519};
use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use secrecy::{ExposeSecret, SecretString};

/// File of a backup with its key.
pub(super) const SEALED_KEY_FILE: &str = "key.age";

/// Minimum length of a passphrase.
const MIN_PASSPHRASE_CHARS: usize = 16;

/// Who can open a new backup.
#[derive(Args)]
pub(crate) struct EncryptionArgs {
    /// age recipient (`age1…`) who can open the backup; may be repeated.
    #[arg(long = "recipient", value_name = "AGE1…")]
    recipients: Vec<String>,
    /// File with age recipients, one on each line.
    #[arg(long, value_name = "FILE")]
    recipients_file: Option<PathBuf>,
}

/// What opens a backup.
#[derive(Args)]
pub(crate) struct DecryptionArgs {
    /// File with an age identity (`AGE-SECRET-KEY-…`) that opens the backup.
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// File with the passphrase of the backup, of at least 16 characters.
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

/// Recipients of the key of a backup.
pub(crate) enum KeyRecipients {
    Public(Vec<x25519::Recipient>),
    Passphrase(SecretString),
}

impl EncryptionArgs {
    /// Returns the recipients. Without any nothing is backed up: there is no backup in the clear.
    pub(crate) fn key_recipients(&self, opening: &DecryptionArgs) -> anyhow::Result<KeyRecipients> {
        let mut texts = self.recipients.clone();
        if let Some(file) = &self.recipients_file {
            let text = fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let lines = text.lines().map(str::trim);
            texts.extend(
                lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned),
            );
        }
        match (texts.is_empty(), &opening.passphrase_file) {
            (false, None) => {
                let parsed = texts.iter().map(|text| {
                    let parsed = text.parse::<x25519::Recipient>();
                    parsed.map_err(|why| anyhow!("`{text}` is no age recipient: {why}"))
                });
                Ok(KeyRecipients::Public(parsed.collect::<Result<_, _>>()?))
            }
            (true, Some(file)) => Ok(KeyRecipients::Passphrase(read_passphrase(file)?)),
            (false, Some(_)) => bail!(
                "a backup is encrypted to recipients or by a passphrase, not both: leave out --recipient or --passphrase-file"
            ),
            (true, None) => bail!(
                "name who can open the backup with --recipient AGE1… (`age-keygen` makes a key), or give --passphrase-file"
            ),
        }
    }
}

impl DecryptionArgs {
    /// Returns whether something is named that may open a backup.
    pub(crate) const fn is_given(&self) -> bool {
        self.identity.is_some() || self.passphrase_file.is_some()
    }

    /// Opens the key of a backup.
    pub(super) fn open_key(&self, backup: &Path) -> anyhow::Result<x25519::Identity> {
        let identities = self.load_identities()?;
        ensure!(
            !identities.is_empty(),
            "name what opens the backup: --identity FILE, or --passphrase-file FILE"
        );
        open_sealed_key(backup, &identities)
    }

    fn load_identities(&self) -> anyhow::Result<Vec<Box<dyn age::Identity>>> {
        let mut identities: Vec<Box<dyn age::Identity>> = Vec::new();
        if let Some(file) = &self.identity {
            let text = fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let text = SecretString::from(text);
            let lines = text.expose_secret().lines().map(str::trim);
            for line in lines.filter(|line| line.starts_with("AGE-SECRET-KEY-")) {
                // The line is not repeated: it is a secret.
                let parsed = line.parse::<x25519::Identity>();
                let parsed = parsed.map_err(|why| anyhow!("in {}: {why}", file.display()))?;
                identities.push(Box::new(parsed));
            }
            ensure!(!identities.is_empty(), "{} holds no age identity", file.display());
        }
        if let Some(file) = &self.passphrase_file {
            identities.push(Box::new(scrypt::Identity::new(read_passphrase(file)?)));
        }
        Ok(identities)
    }
}

fn open_sealed_key(
    backup: &Path,
    identities: &[Box<dyn age::Identity>],
) -> anyhow::Result<x25519::Identity> {
    let file = backup.join(SEALED_KEY_FILE);
    let sealed = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let wrong = |error: age::DecryptError| anyhow!("the backup cannot be opened: {error}");
    let decryptor = Decryptor::new_buffered(&sealed[..]).map_err(wrong)?;
    let mut opened = String::new();
    decryptor
        .decrypt(identities.iter().map(|identity| &**identity))
        .map_err(wrong)?
        .read_to_string(&mut opened)
        .context("the key of the backup is damaged")?;
    let opened = SecretString::from(opened);
    let key = opened.expose_secret().trim().parse::<x25519::Identity>();
    key.map_err(|why| anyhow!("the key of the backup is damaged: {why}"))
}

impl KeyRecipients {
    /// Returns the public recipients as text; none for a passphrase.
    pub(super) fn public_texts(&self) -> Vec<String> {
        match self {
            Self::Public(all) => all.iter().map(ToString::to_string).collect(),
            Self::Passphrase(_) => Vec::new(),
        }
    }

    /// Returns whether the key of an interrupted backup was encrypted for the same, who were `before`.
    pub(super) fn can_open(&self, backup: &Path, before: &[String]) -> bool {
        match self {
            Self::Public(_) => {
                backup.join(SEALED_KEY_FILE).is_file() && self.public_texts() == before
            }
            Self::Passphrase(passphrase) => {
                let identity: Box<dyn age::Identity> =
                    Box::new(scrypt::Identity::new(passphrase.clone()));
                before.is_empty() && open_sealed_key(backup, &[identity]).is_ok()
            }
        }
    }

    /// Encrypts the key of a backup.
    pub(super) fn seal_key(&self, key: &x25519::Identity) -> anyhow::Result<Vec<u8>> {
        let encryptor = match self {
            Self::Public(all) => {
                let all = all.iter().map(|recipient| recipient as &dyn age::Recipient);
                Encryptor::with_recipients(all)
                    .map_err(|error| anyhow!("the key cannot be encrypted: {error}"))?
            }
            Self::Passphrase(passphrase) => Encryptor::with_user_passphrase(passphrase.clone()),
        };
        let mut sealed = Vec::new();
        let mut writer = encryptor.wrap_output(&mut sealed)?;
        writer.write_all(key.to_string().expose_secret().as_bytes())?;
        writer.finish()?;
        Ok(sealed)
    }
}

/// Encrypts what is written to `output` with the key of a backup.
pub(super) fn encrypt_stream<W: Write>(
    key: &x25519::Recipient,
    output: W,
) -> anyhow::Result<StreamWriter<W>> {
    let encryptor = Encryptor::with_recipients(iter::once(key as &dyn age::Recipient))
        .map_err(|error| anyhow!("nothing can be encrypted: {error}"))?;
    Ok(encryptor.wrap_output(output)?)
}

fn read_passphrase(file: &Path) -> anyhow::Result<SecretString> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let text = text.trim_end_matches(['\r', '\n']);
    ensure!(
        text.chars().count() >= MIN_PASSPHRASE_CHARS,
        "the passphrase in {} has fewer than {MIN_PASSPHRASE_CHARS} characters",
        file.display()
    );
    Ok(text.to_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(identity: Option<&Path>, passphrase: Option<&Path>) -> DecryptionArgs {
        DecryptionArgs {
            identity: identity.map(Path::to_owned),
            passphrase_file: passphrase.map(Path::to_owned),
        }
    }

    #[test]
    fn a_key_opens_with_its_identity_and_with_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (x25519::Identity::generate(), x25519::Identity::generate());
        let key = x25519::Identity::generate();
        let sealed = KeyRecipients::Public(vec![own.to_public()]).seal_key(&key).unwrap();
        fs::write(dir.path().join(SEALED_KEY_FILE), sealed).unwrap();
        for (name, identity) in [("own", &own), ("other", &other)] {
            let text = format!("# comment\n{}\n", identity.to_string().expose_secret());
            fs::write(dir.path().join(name), text).unwrap();
        }
        let opened = |name: &str| opening(Some(&dir.path().join(name)), None).open_key(dir.path());
        let text = |key: &x25519::Identity| key.to_string().expose_secret().to_owned();
        assert_eq!(text(&opened("own").unwrap()), text(&key));
        assert!(opened("other").is_err());
        assert!(opening(None, None).open_key(dir.path()).is_err());
    }

    #[test]
    fn there_is_no_backup_without_a_key_and_none_with_a_short_passphrase() {
        let dir = tempfile::tempdir().unwrap();
        let none = EncryptionArgs { recipients: Vec::new(), recipients_file: None };
        assert!(none.key_recipients(&opening(None, None)).is_err());
        let file = dir.path().join("passphrase");
        fs::write(&file, "too short\n").unwrap();
        assert!(none.key_recipients(&opening(None, Some(&file))).is_err());
        fs::write(&file, "correct horse battery staple\n").unwrap();
        let recipients = none.key_recipients(&opening(None, Some(&file)));
        assert!(matches!(recipients, Ok(KeyRecipients::Passphrase(_))));
        let both = EncryptionArgs {
            recipients: vec![x25519::Identity::generate().to_public().to_string()],
            recipients_file: None,
        };
        assert!(both.key_recipients(&opening(None, Some(&file))).is_err());
    }
}

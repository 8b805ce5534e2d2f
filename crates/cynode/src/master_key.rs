//! The master key of this installation: in a file, in a credential of systemd, or in a key management service.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail, ensure};
use cynode_app::{
    App, AppEnvironment,
    platform::keys::{
        CombinedMasterKeys, InstallationKeys, LocalKeyStore, LocalMasterKeys, MasterKeyError,
        MasterKeyService, VaultOptions, VaultTransit,
    },
};
use data_encoding::HEXLOWER;

use crate::{
    config::{CynodeConfig, MasterKeySource},
    restate::{create_private_file, create_sibling_file},
};

/// Bits of the mode of a file that are for everybody else.
const MODE_OF_OTHERS: u32 = 0o007;

/// Writes a new master key.
pub(crate) fn create_master_key(path: &Path) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let key = AppEnvironment::from_system().random_bytes::<32>();
    ensure!(
        store_new_key(path, &key)?,
        "{} is there already; it is not overwritten",
        path.display()
    );
    Ok(())
}

/// Returns whether the configuration names the master key.
pub(crate) const fn has_key_location(config: &CynodeConfig) -> bool {
    config.storage.master_key_file.is_some()
        || config.storage.directory.is_some()
        || !matches!(config.master_key.source, MasterKeySource::File)
}

/// Loads the keys of an installation. The master key is never created here: with a different key every verification would fail.
pub(crate) async fn load_keys(
    config: &CynodeConfig,
    app: &App,
) -> anyhow::Result<InstallationKeys> {
    let service = open_service(config)?;
    Ok(InstallationKeys::open_keyring(app, service).await?)
}

/// Loads the keys of a restored installation: with the master key in its storage, or with the service that the configuration names.
pub(crate) async fn load_restored_keys(
    config: &CynodeConfig,
    storage: &Path,
    app: &App,
) -> anyhow::Result<InstallationKeys> {
    let service = match config.master_key.source {
        MasterKeySource::File => open_local(FileKeyStore { path: storage.join("master.key") })?,
        MasterKeySource::Credential | MasterKeySource::Vault => open_service(config)?,
    };
    Ok(InstallationKeys::open_keyring(app, service).await?)
}

/// Opens the master key that the configuration names. A key that cannot be read is reported before anything else is done.
pub(crate) fn open_service(config: &CynodeConfig) -> anyhow::Result<Arc<dyn MasterKeyService>> {
    let primary: Arc<dyn MasterKeyService> = match config.master_key.source {
        MasterKeySource::File => open_local(FileKeyStore { path: key_file_path(config)? })?,
        MasterKeySource::Credential => {
            let directory = config.master_key.credentials_directory.clone().context(
                "master_key.source is `credential`, and $CREDENTIALS_DIRECTORY is not set: start the program by a unit \
                 with LoadCredential= or LoadCredentialEncrypted=",
            )?;
            open_local(CredentialKeyStore {
                directory,
                name: config.master_key.credential.clone(),
            })?
        }
        MasterKeySource::Vault => Arc::new(VaultTransit::new(vault_options(config)?)?),
    };
    match &config.master_key.previous_file {
        Some(path) => {
            let previous = open_local(FileKeyStore { path: path.clone() })
                .context("in master_key.previous_file")?;
            Ok(Arc::new(CombinedMasterKeys::new(primary, previous)))
        }
        None => Ok(primary),
    }
}

fn open_local(store: impl LocalKeyStore + 'static) -> anyhow::Result<Arc<dyn MasterKeyService>> {
    store.read_keys().map_err(|error| match error {
        MasterKeyError::Unavailable(text) => anyhow::anyhow!(text),
        other => other.into(),
    })?;
    Ok(Arc::new(LocalMasterKeys::new(Box::new(store), AppEnvironment::from_system())))
}

fn vault_options(config: &CynodeConfig) -> anyhow::Result<VaultOptions> {
    let (config, insecure) = (&config.master_key, config.tls.insecure);
    let address = config.vault_address.as_deref().context("master_key.vault_address is not set")?;
    let token_file = config.vault_token_file.clone();
    Ok(VaultOptions {
        address: address.parse().context("in master_key.vault_address")?,
        mount: config.vault_mount.clone(),
        key: config.vault_key.clone(),
        token_file: token_file.context("master_key.vault_token_file is not set")?,
        namespace: config.vault_namespace.clone(),
        ca_file: config.vault_ca_file.clone(),
        insecure,
    })
}

/// Returns the file of the master key.
pub(crate) fn key_file_path(config: &CynodeConfig) -> anyhow::Result<PathBuf> {
    match (&config.storage.master_key_file, &config.storage.directory) {
        (Some(file), _) => Ok(file.clone()),
        (None, Some(directory)) => Ok(directory.join("master.key")),
        (None, None) => bail!(
            "no master key is named: point storage.directory at the installation's, or name the data directory of `cynode up` with --data-dir"
        ),
    }
}

/// Returns whether the configuration names a master key that is there.
pub(crate) fn is_key_present(config: &CynodeConfig) -> bool {
    has_key_location(config)
        && (config.master_key.source != MasterKeySource::File
            || key_file_path(config).is_ok_and(|path| path.exists()))
}

/// Refuses to start without a master key, and says how to make one for a new installation.
pub(crate) fn ensure_key_exists(config: &CynodeConfig) -> anyhow::Result<()> {
    if config.master_key.source != MasterKeySource::File {
        return Ok(());
    }
    let key = key_file_path(config)?;
    ensure!(
        key.exists(),
        "there is no master key {0}: point storage.directory or storage.master_key_file at the installation's, \
         or make one for a new installation with `cynode admin master-key {0}`",
        key.display()
    );
    Ok(())
}

/// Reads a key from a file that nobody else may read.
fn read_key(path: &Path) -> anyhow::Result<[u8; 32]> {
    let text = fs::read_to_string(path).with_context(|| {
        format!(
            "cannot read the master key {}: point storage.directory or storage.master_key_file at the installation's",
            path.display()
        )
    })?;
    let mode = fs::metadata(path)?.permissions().mode();
    ensure!(
        mode.trailing_zeros() >= 6,
        "others may read the master key {0}: chmod 600 {0}",
        path.display()
    );
    parse_key(path, &text)
}

/// Reads a key from a credential. systemd gives the account of the unit an entry in the access list of the file, which `stat` shows as a
/// right of the group; the directory is closed to everybody else.
fn read_credential(path: &Path) -> anyhow::Result<[u8; 32]> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the credential {}", path.display()))?;
    let mode = fs::metadata(path)?.permissions().mode();
    ensure!(mode & MODE_OF_OTHERS == 0, "everybody may read the credential {}", path.display());
    parse_key(path, &text)
}

fn parse_key(path: &Path, text: &str) -> anyhow::Result<[u8; 32]> {
    let key = HEXLOWER.decode(text.trim().as_bytes()).ok().and_then(|key| key.try_into().ok());
    key.with_context(|| format!("{} holds no master key", path.display()))
}

fn read_optional_key(path: &Path) -> anyhow::Result<Option<[u8; 32]>> {
    path.exists().then(|| read_key(path)).transpose()
}

/// Stores a key where there is none. Returns `false` if there is one: a key that may wrap others is never replaced.
fn store_new_key(path: &Path, key: &[u8; 32]) -> anyhow::Result<bool> {
    create_private_file(path, &format!("{}\n", HEXLOWER.encode(key)))
}

fn to_key_error(error: &anyhow::Error) -> MasterKeyError {
    MasterKeyError::Unavailable(format!("{error:#}"))
}

/// A file, and beside it the next key while a rotation begins.
struct FileKeyStore {
    path: PathBuf,
}

impl FileKeyStore {
    /// Returns a file beside the key.
    fn sibling_path(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    }

    fn read_all(&self) -> anyhow::Result<Vec<[u8; 32]>> {
        let mut keys = vec![read_key(&self.path)?];
        keys.extend(read_optional_key(&self.sibling_path(".next"))?);
        Ok(keys)
    }

    fn promote(&self, key: &[u8; 32]) -> anyhow::Result<()> {
        let current = read_key(&self.path)?;
        let next = self.sibling_path(".next");
        if current == *key {
            return Ok(());
        }
        ensure!(
            read_optional_key(&next)?.as_ref() == Some(key),
            "{} is not the key of the rotation",
            next.display()
        );
        // Backups that were made before need the old key: it is set aside, not destroyed.
        let version = LocalMasterKeys::version_of(&current).replace(':', "-");
        let retired = self.sibling_path(&format!(".retired-{version}"));
        if !retired.exists() {
            fs::hard_link(&self.path, &retired)
                .with_context(|| format!("cannot make {}", retired.display()))?;
        }
        fs::rename(&next, &self.path)
            .with_context(|| format!("cannot replace {}", self.path.display()))
    }
}

impl LocalKeyStore for FileKeyStore {
    fn place_name(&self) -> &'static str {
        "file"
    }

    fn read_keys(&self) -> Result<Vec<[u8; 32]>, MasterKeyError> {
        self.read_all().map_err(|error| to_key_error(&error))
    }

    fn store_next(&self, key: &[u8; 32]) -> Result<(), MasterKeyError> {
        // The one that another process stored at the same moment counts.
        let text = format!("{}\n", HEXLOWER.encode(key));
        // The server reads it by the account that reads the current one, also when root rotates.
        create_sibling_file(&self.sibling_path(".next"), &text, &self.path)
            .map(drop)
            .map_err(|error| to_key_error(&error))
    }

    fn promote_key(&self, key: &[u8; 32]) -> Result<(), MasterKeyError> {
        self.promote(key).map_err(|error| to_key_error(&error))
    }
}

/// A credential of systemd. This process cannot write it.
struct CredentialKeyStore {
    directory: PathBuf,
    name: String,
}

impl CredentialKeyStore {
    fn credential_path(&self, suffix: &str) -> PathBuf {
        self.directory.join(format!("{}{suffix}", self.name))
    }

    fn read_all(&self) -> anyhow::Result<Vec<[u8; 32]>> {
        let name = &self.name;
        let named = || format!("the credential `{name}` cannot be used");
        let mut keys = vec![read_credential(&self.credential_path("")).with_context(named)?];
        let next = self.credential_path(".next");
        if next.exists() {
            keys.push(read_credential(&next)?);
        }
        Ok(keys)
    }
}

impl LocalKeyStore for CredentialKeyStore {
    fn place_name(&self) -> &'static str {
        "credential"
    }

    fn read_keys(&self) -> Result<Vec<[u8; 32]>, MasterKeyError> {
        self.read_all().map_err(|error| to_key_error(&error))
    }

    fn store_next(&self, _: &[u8; 32]) -> Result<(), MasterKeyError> {
        if self.credential_path(".next").exists() {
            return Ok(());
        }
        let name = &self.name;
        Err(MasterKeyError::NotRotatable(format!(
            "add the credential `{name}.next` with a new key (`cynode admin master-key FILE`) to the unit, restart it, and rotate then"
        )))
    }

    fn promote_key(&self, key: &[u8; 32]) -> Result<(), MasterKeyError> {
        if read_credential(&self.credential_path("")).map_err(|error| to_key_error(&error))? == *key
        {
            return Ok(());
        }
        let name = &self.name;
        Err(MasterKeyError::NotRotatable(format!(
            "the rotation is done: let the credential `{name}` hold the key of `{name}.next`, remove that one, and restart the unit"
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn service(path: &Path) -> Arc<dyn MasterKeyService> {
        open_local(FileKeyStore { path: path.to_owned() }).unwrap()
    }

    #[tokio::test]
    async fn the_file_of_a_rotated_master_key_holds_the_new_one_and_the_old_one_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("master.key");
        create_master_key(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        let before = fs::read_to_string(&path).unwrap();
        let keys = service(&path);
        let old = keys.current_version().await.unwrap();
        let next = keys.next_version().await.unwrap();
        assert_eq!(service(&path).next_version().await.unwrap(), next, "killed here, it goes on");
        let access = |suffix: &str| {
            let found = fs::metadata(directory.path().join(format!("master.key{suffix}"))).unwrap();
            (found.uid(), found.gid(), found.mode())
        };
        assert_eq!(access(".next"), access(""), "who reads the one reads the other");
        keys.finish_rotation(&next).await.unwrap();
        assert_eq!(service(&path).current_version().await.unwrap(), next);
        assert_ne!(fs::read_to_string(&path).unwrap(), before);
        let retired = format!("master.key.retired-{}", old.replace(':', "-"));
        let mut files: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort_unstable();
        assert_eq!(files, ["master.key".to_owned(), retired.clone()]);
        assert_eq!(fs::read_to_string(directory.path().join(retired)).unwrap(), before);
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("master.key");
        create_master_key(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = open_local(FileKeyStore { path: path.clone() }).err().unwrap().to_string();
        assert_eq!(
            refused,
            format!("others may read the master key {0}: chmod 600 {0}", path.display())
        );
    }

    #[tokio::test]
    async fn a_next_key_of_another_process_is_taken_and_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("master.key");
        create_master_key(&path).unwrap();
        let (first, second) = (service(&path), service(&path));
        let next = first.next_version().await.unwrap();
        let wrapped = first.wrap_key(&next, b"", b"material").await.unwrap();
        // Its own random key is dropped: what the first one wrapped would be lost otherwise.
        FileKeyStore { path: path.clone() }.store_next(&[9; 32]).unwrap();
        assert_eq!(second.next_version().await.unwrap(), next);
        assert_eq!(second.unwrap_key(&next, b"", &wrapped).await.unwrap(), b"material");
    }

    #[test]
    fn a_credential_with_an_access_list_is_read_and_one_for_everybody_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cynode-master-key");
        create_master_key(&path).unwrap();
        let store = || CredentialKeyStore {
            directory: directory.path().to_owned(),
            name: "cynode-master-key".to_owned(),
        };
        // The mask of an access list is shown as the right of the group.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o440)).unwrap();
        assert!(open_local(store()).is_ok());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        let refused = format!("{:#}", open_local(store()).err().unwrap());
        assert!(refused.contains("everybody may read the credential"), "{refused}");
    }

    #[tokio::test]
    async fn a_credential_is_read_and_never_written() {
        let directory = tempfile::tempdir().unwrap();
        let store = || CredentialKeyStore {
            directory: directory.path().to_owned(),
            name: "cynode-master-key".to_owned(),
        };
        assert!(open_local(store()).is_err());
        create_master_key(&directory.path().join("cynode-master-key")).unwrap();
        let keys = open_local(store()).unwrap();
        let refused = keys.next_version().await;
        assert!(matches!(refused, Err(MasterKeyError::NotRotatable(_))), "{refused:?}");
        create_master_key(&directory.path().join("cynode-master-key.next")).unwrap();
        let next = keys.next_version().await.unwrap();
        let told = keys.finish_rotation(&next).await;
        assert!(matches!(told, Err(MasterKeyError::NotRotatable(_))), "{told:?}");
    }
}

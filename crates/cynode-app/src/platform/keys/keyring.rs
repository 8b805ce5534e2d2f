//! The keyring in the database: loading, refreshing, and the begin and the end of a rotation.

use std::sync::Arc;

use cynode_audit::{KeyIntroduction, NamedSigningKey, PublicAuditKey, PublicKeyring};
use cynode_core::events::EventKind;
use cynode_db::{
    Conn,
    platform::keyring::{
        self, FIRST_TOKEN_KEY, KeyEndorsement, KeyPurpose, KeyRecord, KeyUse, WrappedMaterial,
    },
};
use cynode_wire::platform::keys::MasterKeyView;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde_json::json;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::{
    FirstKeys, InstallationKeys, KeySet, KeyringSnapshot, NamedKey,
    master_key::{MasterKeyError, MasterKeyService},
    token_hashing::{TOKEN_MATERIAL_BYTES, TokenSecrets},
};
use crate::{
    App, AppEnvironment, Ctx, Error, OperationRequest,
    platform::{context::EventDraft, operation},
};

/// Time from the creation of a key to its first use. Every replica refreshes its keyring more often than that, so each can open what the
/// first one seals.
pub const ACTIVATION_DELAY: Duration = Duration::seconds(15);

/// Time for which an old signing key is kept after its last use: writers may have begun to sign.
const SIGNING_GRACE: Duration = Duration::seconds(30);

/// Maximum lifetime of an answer link. Links are authenticated by keys of tokens and are not stored.
const LINK_GRACE: Duration = Duration::hours(24);

impl From<MasterKeyError> for Error {
    fn from(error: MasterKeyError) -> Self {
        Self::Internal(error.into())
    }
}

/// A rotation that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyringChange {
    /// What the new key is for.
    pub purpose: KeyPurpose,
    /// Whether the old key ends as soon as nothing stored names it. Answer links that were sent before stop working then.
    pub at_once: bool,
}

impl InstallationKeys {
    /// Loads the keyring. A new installation whose master key cannot be derived from gets its first keys.
    #[operation]
    pub async fn open_keyring(app: &App, master: Arc<dyn MasterKeyService>) -> Result<Self, Error> {
        replace_first_keys(app, &*master).await?;
        let now = app.environment().now();
        let mut conn = app.conn().await?;
        let records = keyring::list_keys(&mut conn).await?;
        let snapshot = build_snapshot(&records, &*master, None, now).await?;
        store_public_keys(&mut conn, &records, &snapshot).await?;
        Ok(Self::from_snapshot(snapshot, master))
    }

    /// Loads keys that are new and drops those that were retired. A failure leaves the keyring as it is. Returns every key.
    #[operation]
    pub(crate) async fn refresh_keyring(&self, app: &App) -> Result<Vec<KeyRecord>, Error> {
        let now = app.environment().now();
        let mut conn = app.conn().await?;
        let records = keyring::list_keys(&mut conn).await?;
        drop(conn);
        let before = self.snapshot.load_full();
        let snapshot = build_snapshot(&records, &*self.master, Some(&*before), now).await?;
        let is_missing = |record: &KeyRecord| {
            record.purpose == KeyPurpose::Signing && record.public_key.is_none()
        };
        if live_records(&records).any(is_missing) {
            store_public_keys(&mut *app.conn().await?, &records, &snapshot).await?;
        }
        self.snapshot.store(Arc::new(snapshot));
        Ok(records)
    }

    /// Loads the keyring anew, as another process with the same master key does when it starts.
    #[operation]
    pub async fn open_again(&self, app: &App) -> Result<Self, Error> {
        Self::open_keyring(app, self.master.clone()).await
    }

    /// Returns whether the keys are wrapped by a version of the master key that did not take the place of the one before it, and none is
    /// being rotated: the end of a rotation of the master key is missing.
    #[operation]
    pub async fn is_rotation_unfinished(&self, app: &App) -> Result<bool, Error> {
        let mut conn = app.conn().await?;
        let records = keyring::list_keys(&mut conn).await?;
        drop(conn);
        // A service may have had earlier versions before this installation: without a rotation of ours no end is missing.
        let has_rotated = records.iter().any(|record| {
            record.purpose == KeyPurpose::Master
                && record.retired_at.is_some()
                && record.retires_at.is_some()
        });
        let wrapped = live_records(&records).filter_map(|record| record.wrapped.as_ref()).last();
        let ended = has_rotated && !is_rotating(&records, KeyPurpose::Master);
        let Some(wrapped) = wrapped.filter(|_| ended) else { return Ok(false) };
        Ok(!self.master.is_promoted(&wrapped.by).await?)
    }

    /// Describes the master key: its place, its version and since when it wraps the keys, and whether the end of its rotation is missing.
    #[operation]
    pub async fn describe_master_key(&self, app: &App) -> Result<MasterKeyView, Error> {
        let mut conn = app.conn().await?;
        let records = keyring::list_keys(&mut conn).await?;
        drop(conn);
        let version = live_records(&records).filter_map(|record| record.wrapped.as_ref()).last();
        let version = version.map(|wrapped| wrapped.by.clone());
        // A rotation of the master key makes a new key that seals.
        let newest = live_records(&records).filter(|record| record.purpose == KeyPurpose::Master);
        let since = newest.last().map(|record| record.created_at);
        let (unfinished, problem) = match self.is_rotation_unfinished(app).await {
            Ok(unfinished) => (unfinished, None),
            Err(Error::Internal(cause)) => (false, Some(format!("{cause:#}"))),
            Err(error) => return Err(error),
        };
        let place = self.master.place_of(version.as_deref().unwrap_or_default()).to_owned();
        Ok(MasterKeyView { place, version, since, unfinished, problem })
    }

    /// Makes the version of the master key that wraps all keys the only one.
    #[operation]
    pub async fn finish_master_rotation(&self, app: &App) -> Result<(), Error> {
        let mut conn = app.conn().await?;
        let records = keyring::list_keys(&mut conn).await?;
        drop(conn);
        let mut versions: Vec<&str> = live_records(&records)
            .filter_map(|record| record.wrapped.as_ref().map(|wrapped| wrapped.by.as_str()))
            .collect();
        versions.sort_unstable();
        versions.dedup();
        let unwrapped = live_records(&records).any(|record| record.wrapped.is_none());
        match versions.as_slice() {
            [version] if !unwrapped => Ok(self.master.finish_rotation(version).await?),
            _ => Err(Error::Conflict("some keys are not wrapped by the new master key yet")),
        }
    }
}

fn live_records(records: &[KeyRecord]) -> impl Iterator<Item = &KeyRecord> {
    records.iter().filter(|record| record.retired_at.is_none())
}

/// Returns the context in which a key is wrapped: moved to another row, it cannot be opened.
fn wrapping_context(purpose: KeyPurpose, id: Uuid) -> Vec<u8> {
    format!("cynode/key/{}/{id}", purpose.as_str()).into_bytes()
}

/// Material of keys that were loaded before, or that the master key opens.
struct MaterialSource<'a> {
    master: &'a dyn MasterKeyService,
    before: Option<&'a KeyringSnapshot>,
}

impl MaterialSource<'_> {
    /// Returns the material of a key.
    async fn load_material(&self, record: &KeyRecord) -> Result<Vec<u8>, Error> {
        if let Some(known) = self.loaded_material(record) {
            return Ok(known);
        }
        let context = wrapping_context(record.purpose, record.id);
        match &record.wrapped {
            Some(wrapped) => {
                Ok(self.master.unwrap_key(&wrapped.by, &context, &wrapped.bytes).await?)
            }
            None => {
                let secret = self.master.first_secret().ok_or_else(|| {
                    Error::Internal(anyhow::anyhow!(
                        "the keys of this installation follow from another master key: name its file in \
                         master_key.previous_file and run `cynode admin rotate-key master`"
                    ))
                })?;
                Ok(first_material(&FirstKeys::derive_keys(&secret), record.purpose))
            }
        }
    }

    fn loaded_material(&self, record: &KeyRecord) -> Option<Vec<u8>> {
        let before = self.before?;
        match record.purpose {
            KeyPurpose::Master => before.sealing.find_key(record.id).map(|key| key.to_vec()),
            KeyPurpose::Signing => {
                before.signing.find_key(record.id).map(|key| key.to_bytes().to_vec())
            }
            KeyPurpose::Token => {
                before.tokens.find_key(record.id).map(|key| key.as_material().to_vec())
            }
        }
    }
}

fn first_material(first: &FirstKeys, purpose: KeyPurpose) -> Vec<u8> {
    match purpose {
        KeyPurpose::Master => first.sealing.to_vec(),
        KeyPurpose::Signing => first.signing.to_bytes().to_vec(),
        KeyPurpose::Token => first.tokens.as_material().to_vec(),
    }
}

async fn build_snapshot(
    records: &[KeyRecord],
    master: &dyn MasterKeyService,
    before: Option<&KeyringSnapshot>,
    now: OffsetDateTime,
) -> Result<KeyringSnapshot, Error> {
    let source = MaterialSource { master, before };
    let damaged = || Error::Internal(anyhow::anyhow!("a key of the installation is damaged"));
    let (mut sealing, mut signing, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    for record in live_records(records) {
        let material = source.load_material(record).await?;
        let id = record.id;
        match record.purpose {
            KeyPurpose::Master => {
                let key: [u8; 32] = material.try_into().map_err(|_| damaged())?;
                sealing.push((record, NamedKey { id, key }));
            }
            KeyPurpose::Signing => {
                let key: [u8; 32] = material.try_into().map_err(|_| damaged())?;
                signing.push((record, NamedKey { id, key: SigningKey::from_bytes(&key) }));
            }
            KeyPurpose::Token => {
                let key = TokenSecrets::from_material(&material, id == FIRST_TOKEN_KEY)
                    .ok_or_else(damaged)?;
                tokens.push((record, NamedKey { id, key }));
            }
        }
    }
    let signing = choose_active(signing, now).ok_or_else(damaged)?;
    Ok(KeyringSnapshot {
        sealing: choose_active(sealing, now).ok_or_else(damaged)?,
        tokens: choose_active(tokens, now).ok_or_else(damaged)?,
        public: collect_public_keys(records, &signing),
        signing,
    })
}

/// Chooses the newest key that may be used. The records are in the order of their activation.
fn choose_active<T>(
    mut keys: Vec<(&KeyRecord, NamedKey<T>)>,
    now: OffsetDateTime,
) -> Option<KeySet<T>> {
    let newest = keys.iter().rposition(|(record, _)| record.activates_at <= now)?;
    let (_, active) = keys.remove(newest);
    Some(KeySet { active, others: keys.into_iter().map(|(_, key)| key).collect() })
}

/// Collects the public keys of the installation. Those of keys that we hold are computed. That of a retired key is in the database, and
/// counts only if a key that counts has signed it: nobody who writes to the database can add one.
fn collect_public_keys(records: &[KeyRecord], signing: &KeySet<SigningKey>) -> PublicKeyring {
    let records: Vec<_> =
        records.iter().filter(|record| record.purpose == KeyPurpose::Signing).collect();
    let mut keys: Vec<PublicAuditKey> = records
        .iter()
        .filter_map(|record| {
            let public_key = signing.find_key(record.id)?.verifying_key();
            Some(to_public_key(record, public_key))
        })
        .collect();
    // Each key endorses the one before it, so every round finds at least one more.
    for _ in 0..records.len() {
        for record in &records {
            if keys.iter().all(|key| key.key_id != record.id) {
                keys.extend(endorsed_key(record, &keys));
            }
        }
    }
    keys.sort_by_key(|key| records.iter().position(|record| record.id == key.key_id));
    PublicKeyring::new(keys)
}

/// Returns the public key of a retired key that one of these keys has signed.
fn endorsed_key(record: &KeyRecord, keys: &[PublicAuditKey]) -> Option<PublicAuditKey> {
    let (public, endorsement) = (record.public_key?, record.endorsement?);
    let signer = keys.iter().find(|key| key.key_id == endorsement.by)?;
    let payload = endorsement_payload(record.id, &public, record.retired_at?);
    let signature = Signature::from_bytes(&endorsement.signature);
    signer.public_key.verify_strict(&payload, &signature).ok()?;
    let public_key = VerifyingKey::from_bytes(&public).ok()?;
    Some(to_public_key(record, public_key))
}

fn to_public_key(record: &KeyRecord, public_key: VerifyingKey) -> PublicAuditKey {
    let signed = |it: KeyEndorsement| KeyIntroduction { by: it.by, signature: it.signature };
    PublicAuditKey {
        key_id: record.id,
        public_key,
        retired_at: record.retired_at,
        introduction: record.introduction.map(signed),
        endorsement: record.endorsement.map(signed),
    }
}

fn endorsement_payload(id: Uuid, public_key: &[u8; 32], retired_at: OffsetDateTime) -> Vec<u8> {
    let micros = i64::try_from(retired_at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX);
    let domain = b"cynode/audit/retired-key/v1\0".as_slice();
    [domain, id.as_bytes(), public_key, &micros.to_be_bytes()].concat()
}

/// Stores public keys that are missing: those of keys that were derived in an earlier version.
async fn store_public_keys(
    conn: &mut Conn,
    records: &[KeyRecord],
    snapshot: &KeyringSnapshot,
) -> Result<(), Error> {
    for record in live_records(records).filter(|record| record.public_key.is_none()) {
        if let Some(key) = snapshot.signing.find_key(record.id) {
            keyring::set_public_key(conn, record.id, key.verifying_key().as_bytes()).await?;
        }
    }
    Ok(())
}

/// Gives a new installation keys of its own, if the keys of the first version cannot be derived: its master key is in a key management
/// service. Nothing may name the first keys.
async fn replace_first_keys(app: &App, master: &dyn MasterKeyService) -> Result<(), Error> {
    let mut conn = app.conn().await?;
    let is_missing = |record: &&KeyRecord| record.derived && record.wrapped.is_none();
    let records = keyring::list_keys(&mut conn).await?;
    if !live_records(&records).any(|record| is_missing(&record)) || master.first_secret().is_some()
    {
        return Ok(());
    }
    drop(conn);
    let version = master.current_version().await?;
    let mut ctx = begin_keyring_change(app).await?;
    let records = keyring::list_keys(ctx.conn()).await?;
    let uses = keyring::count_key_uses(ctx.conn()).await?;
    for record in live_records(&records).filter(is_missing) {
        if uses.iter().any(|named| named.key == record.id) {
            return Err(Error::Internal(anyhow::anyhow!(
                "secrets of this installation follow from a master key in a file: name the file in \
                 master_key.previous_file and run `cynode admin rotate-key master`"
            )));
        }
        let now = ctx.now;
        insert_new_key(&mut ctx, master, &version, record.purpose, now, None).await?;
        retire_key(&mut ctx, None, record).await?;
    }
    app.commit_operation(ctx).await
}

/// Begins a change of the keyring, which excludes other changes.
async fn begin_keyring_change(app: &App) -> Result<Ctx, Error> {
    let request =
        OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None };
    let mut ctx = app.begin_transaction(&request).await?;
    keyring::lock_keyring(ctx.conn()).await?;
    Ok(ctx)
}

fn create_material(environment: &AppEnvironment, purpose: KeyPurpose) -> Vec<u8> {
    match purpose {
        KeyPurpose::Master | KeyPurpose::Signing => environment.random_bytes::<32>().to_vec(),
        KeyPurpose::Token => environment.random_bytes::<TOKEN_MATERIAL_BYTES>().to_vec(),
    }
}

/// Creates a key that is used from `activates_at` on.
async fn insert_new_key(
    ctx: &mut Ctx,
    master: &dyn MasterKeyService,
    version: &str,
    purpose: KeyPurpose,
    activates_at: OffsetDateTime,
    introducer: Option<&NamedSigningKey>,
) -> Result<Uuid, Error> {
    let (id, now) = (ctx.new_uuid(), ctx.now);
    let material = create_material(ctx.environment(), purpose);
    let public_key = match (purpose, <[u8; 32]>::try_from(material.as_slice())) {
        (KeyPurpose::Signing, Ok(secret)) => Some(SigningKey::from_bytes(&secret).verifying_key()),
        _ => None,
    };
    let introduction = introducer.zip(public_key).map(|(signer, public_key)| {
        let signed = KeyIntroduction::sign_successor(signer, id, &public_key);
        KeyEndorsement { by: signed.by, signature: signed.signature }
    });
    let bytes = master.wrap_key(version, &wrapping_context(purpose, id), &material).await?;
    let record = KeyRecord {
        id,
        purpose,
        created_at: now,
        activates_at,
        retires_at: None,
        retired_at: None,
        derived: false,
        wrapped: Some(WrappedMaterial { by: version.to_owned(), bytes }),
        public_key: public_key.map(|key| key.to_bytes()),
        endorsement: None,
        introduction,
    };
    keyring::insert_key(ctx.conn(), &record).await?;
    let data = json!({ "key_id": id, "purpose": purpose.as_str(), "change": "created" });
    ctx.record_event(EventDraft::new(EventKind::KeyChanged, data)).await?;
    Ok(id)
}

/// Retires a key. The schema refuses it while anything names the key. The key that signs now endorses the public key of an old one.
pub(crate) async fn retire_key(
    ctx: &mut Ctx,
    keys: Option<&InstallationKeys>,
    record: &KeyRecord,
) -> Result<(), Error> {
    let now = ctx.now;
    let endorsement = keys.zip(record.public_key).map(|(keys, public_key)| {
        let signer = keys.signing_key();
        let payload = endorsement_payload(record.id, &public_key, now);
        KeyEndorsement { by: signer.id, signature: signer.key.sign(&payload).to_bytes() }
    });
    keyring::retire_key(ctx.conn(), record.id, now, endorsement).await?;
    let data =
        json!({ "key_id": record.id, "purpose": record.purpose.as_str(), "change": "retired" });
    ctx.record_event(EventDraft::new(EventKind::KeyChanged, data)).await
}

/// Creates the next version of the master key and returns its name. Every machine of an installation needs it before the rotation begins.
#[operation]
pub async fn prepare_master_key(app: &App) -> Result<String, Error> {
    let keys = app.installation_keys()?;
    Ok(keys.master.next_version().await?)
}

/// Begins the rotation of a key: a new key is created, and becomes active after [`ACTIVATION_DELAY`]. Returns the ids of the new keys. A
/// rotation that is under way goes on, and nothing is created.
///
/// The rotation of the master key wraps every key anew. Keys that follow from the old master key are rotated with it.
#[tracing::instrument(name = "app.keys.begin_rotation", skip_all)]
#[operation]
pub async fn begin_rotation(app: &App, change: KeyringChange) -> Result<Vec<Uuid>, Error> {
    let keys = app.installation_keys()?;
    let mut ctx = begin_keyring_change(app).await?;
    let records = keyring::list_keys(ctx.conn()).await?;
    if is_rotating(&records, change.purpose) {
        let newest =
            live_records(&records).filter(|record| record.purpose == change.purpose).last();
        if let Some(newest) =
            newest.filter(|_| change.at_once && change.purpose == KeyPurpose::Token)
        {
            // The old key does not wait for links any more. It is used until the new one is active.
            let end = ctx.now.max(newest.activates_at);
            keyring::supersede_keys(ctx.conn(), change.purpose, newest.id, end).await?;
            app.commit_operation(ctx).await?;
        }
        return Ok(Vec::new());
    }
    let version = match change.purpose {
        KeyPurpose::Master => {
            let version = keys.master.next_version().await?;
            rewrap_keys(&mut ctx, &keys, &records, &version).await?;
            version
        }
        KeyPurpose::Signing | KeyPurpose::Token => present_version(&keys, &records).await?,
    };
    let mut purposes = vec![change.purpose];
    if change.purpose == KeyPurpose::Master {
        let is_derived = |purpose: &KeyPurpose| {
            live_records(&records).any(|record| record.derived && record.purpose == *purpose)
                && !is_rotating(&records, *purpose)
        };
        purposes.extend([KeyPurpose::Signing, KeyPurpose::Token].into_iter().filter(is_derived));
    }
    let activates_at = ctx.now + ACTIVATION_DELAY;
    let signer = keys.signing_key();
    let mut created = Vec::new();
    for purpose in purposes {
        let created_key =
            insert_new_key(&mut ctx, &*keys.master, &version, purpose, activates_at, Some(&signer));
        let id = created_key.await?;
        let retires_at = activates_at
            + match purpose {
                KeyPurpose::Master => Duration::ZERO,
                KeyPurpose::Signing => SIGNING_GRACE,
                KeyPurpose::Token if change.at_once => Duration::ZERO,
                KeyPurpose::Token => LINK_GRACE,
            };
        keyring::supersede_keys(ctx.conn(), purpose, id, retires_at).await?;
        created.push(id);
    }
    app.commit_operation(ctx).await?;
    Ok(created)
}

/// Returns whether a newer key of that purpose takes over from an older one.
fn is_rotating(records: &[KeyRecord], purpose: KeyPurpose) -> bool {
    live_records(records).any(|record| record.purpose == purpose && record.retires_at.is_some())
}

/// Returns the version of the master key that wraps the keys now.
async fn present_version(keys: &InstallationKeys, records: &[KeyRecord]) -> Result<String, Error> {
    let wrapped = live_records(records).filter_map(|record| record.wrapped.as_ref()).last();
    match wrapped {
        Some(wrapped) => Ok(wrapped.by.clone()),
        None => Ok(keys.master.current_version().await?),
    }
}

/// Wraps every key with another version of the master key.
async fn rewrap_keys(
    ctx: &mut Ctx,
    keys: &InstallationKeys,
    records: &[KeyRecord],
    version: &str,
) -> Result<(), Error> {
    let source = MaterialSource { master: &*keys.master, before: None };
    for record in live_records(records) {
        let material = source.load_material(record).await?;
        let context = wrapping_context(record.purpose, record.id);
        let bytes = keys.master.wrap_key(version, &context, &material).await?;
        let wrapped = WrappedMaterial { by: version.to_owned(), bytes };
        keyring::rewrap_key(ctx.conn(), record.id, &wrapped).await?;
    }
    Ok(())
}

/// Returns every key, and what names it.
#[operation]
pub async fn load_rotation_state(app: &App) -> Result<(Vec<KeyRecord>, Vec<KeyUse>), Error> {
    let mut conn = app.conn().await?;
    let records = keyring::list_keys(&mut conn).await?;
    Ok((records, keyring::count_key_uses(&mut conn).await?))
}

//! Rotation of keys: what an old key sealed or hashed is stored under the new one, in batches, and the old key is retired when nothing
//! names it.
//!
//! Every step finds its work in the database, so a process that dies loses nothing: any process goes on. A secret is replaced only if it
//! is still the one that was read, so a writer at the same moment wins.

use std::time::{Duration as Interval, Instant};

use cynode_core::{
    ids::{AgentTokenId, ChannelId, ProviderGrantId, UserId},
    roles::UserRole,
};
use cynode_db::{
    Conn, DbError,
    delivery::{environments as stored_environments, forges as stored_forges},
    identity::identity_providers as stored_providers,
    models::registry as stored_models,
    notifications::{self as stored_channels, web_push},
    platform::keyring::{
        self, FIRST_TOKEN_KEY, KeyPurpose, KeyRecord, KeyUse, SealedColumn, TokenHash, TokenTable,
    },
    tools::{audit_export, tool_servers},
};
use cynode_wire::platform::keys::{KeyUseView, KeyView, KeyringView};
use time::{Duration, OffsetDateTime};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use cynode_db::platform::keyring::KeyringProcess;

use crate::{
    App, Error, OperationRequest,
    delivery::{environments, forges},
    identity::{identity_providers, provider_grants, second_factor},
    models::registry,
    platform::{
        error::log_background_error,
        keys::{
            self as platform_keys, InstallationKeys, WEB_PUSH_KEY_PLACE, channel_associated_data,
            sealing_key_of,
        },
        operation,
    },
    tools::{approvals, audit::sinks},
};

/// Interval at which every process refreshes its keyring. It is much shorter than [`platform_keys::ACTIVATION_DELAY`].
const REFRESH_INTERVAL: Interval = Interval::from_secs(5);

/// Time from the activation of a key to the first step: until then a process may still use the old key.
const SETTLE_TIME: Duration = Duration::seconds(10);

/// Maximum number of secrets or tokens that one transaction stores anew.
const ROTATION_BATCH: usize = 200;

/// Maximum number of transactions of one step.
const MAX_STEP_BATCHES: usize = 25;

/// Number of refreshes between two steps that find nothing to do: an old key may have to wait for its end.
const IDLE_REFRESHES: u32 = 6;

/// Time for which a process counts as live after its last refresh.
const PROCESS_TTL: Duration = Duration::minutes(1);

/// Time after which a process notes again that it is live with the same keys. New keys are noted at once.
const REPORT_INTERVAL: Interval = Interval::from_secs(20);

/// Time before the activation of a key at which its activation is postponed if a live process has not loaded it. Every process refreshes
/// once in between, and reads the new time before the old one has come.
const POSTPONE_WINDOW: (Duration, Duration) = (Duration::seconds(2), Duration::seconds(8));

/// Refreshes the keyring and goes on with rotations until shutdown. A failure is logged and retried. The name tells people which process
/// keeps a rotation waiting.
#[operation]
pub async fn run_key_rotation(app: App, name: String, stop: CancellationToken) {
    let process = KeyringProcess { id: app.environment().new_uuid(app.environment().now()), name };
    let mut turn = tokio::time::interval(REFRESH_INTERVAL);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut idle_refreshes = 0;
    let mut reported: Option<(Vec<Uuid>, Instant)> = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = turn.tick() => {}
        }
        let refreshed = if idle_refreshes == 0 {
            let step = advance_rotations(&app).await;
            if step.as_ref().is_ok_and(|step| !step.finished && step.changed + step.retired == 0) {
                idle_refreshes = IDLE_REFRESHES;
            }
            step.map(drop)
        } else {
            idle_refreshes -= 1;
            refresh_only(&app).await
        };
        if let Err(error) = refreshed {
            let what = "the keyring could not be refreshed; the keys stay as they are, and rotations wait for this process";
            log_background_error("keys.refresh_failed", &error, what);
        }
        if let Err(error) = report_news(&app, &process, &mut reported).await {
            let what = "the keys of this process could not be noted";
            log_background_error("keys.refresh_failed", &error, what);
        }
    }
    if let Err(error) = forget_process(&app, process.id).await {
        let what = "the end of this process could not be noted: a rotation waits for a minute";
        log_background_error("keys.refresh_failed", &error, what);
    }
}

async fn refresh_only(app: &App) -> Result<(), Error> {
    let records = app.installation_keys()?.refresh_keyring(app).await?;
    postpone_activations(app, &records).await
}

/// Notes the keys of this process if they have changed since they were noted, or if that was some time ago.
async fn report_news(
    app: &App,
    process: &KeyringProcess,
    reported: &mut Option<(Vec<Uuid>, Instant)>,
) -> Result<(), Error> {
    let mut keys = app.installation_keys()?.loaded_keys();
    keys.sort_unstable();
    let is_known = reported
        .as_ref()
        .is_some_and(|(known, at)| *known == keys && at.elapsed() < REPORT_INTERVAL);
    if !is_known {
        report_loads(app, process).await?;
        *reported = Some((keys, Instant::now()));
    }
    Ok(())
}

/// Notes which keys this process has in memory. Rotations wait until every live process has the new key.
#[operation]
pub async fn report_loads(app: &App, process: &KeyringProcess) -> Result<(), Error> {
    let keys = app.installation_keys()?.loaded_keys();
    let mut conn = app.conn().await?;
    Ok(keyring::report_loads(&mut conn, process, &keys, app.environment().now()).await?)
}

async fn forget_process(app: &App, process: Uuid) -> Result<(), Error> {
    let since = app.environment().now() - PROCESS_TTL;
    let mut conn = app.conn().await?;
    Ok(keyring::delete_gone_processes(&mut conn, process, since).await?)
}

/// Postpones the activation of keys that a live process has not loaded: it could not open what another one seals with them.
async fn postpone_activations(app: &App, records: &[KeyRecord]) -> Result<(), Error> {
    let now = app.environment().now();
    let (end, begin) = POSTPONE_WINDOW;
    let is_near = |record: &&KeyRecord| {
        record.retired_at.is_none() && (now + end..now + begin).contains(&record.activates_at)
    };
    for record in records.iter().filter(is_near) {
        let mut conn = app.conn().await?;
        if !list_lagging_processes(&mut conn, record.id, now).await?.is_empty() {
            let until = now + platform_keys::ACTIVATION_DELAY;
            keyring::postpone_activation(&mut conn, record.id, now, until).await?;
        }
    }
    Ok(())
}

/// Lists the live processes that have not loaded a key.
async fn list_lagging_processes(
    conn: &mut Conn,
    key: Uuid,
    now: OffsetDateTime,
) -> Result<Vec<String>, DbError> {
    keyring::list_processes_without_key(conn, key, now - PROCESS_TTL).await
}

/// What a step of the rotations did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RotationStep {
    /// Number of secrets and tokens that were stored anew.
    pub changed: u64,
    /// Number of keys that were retired.
    pub retired: u64,
    /// Whether no rotation is under way any more.
    pub finished: bool,
    /// Secrets that cannot be opened. They keep their key from being retired.
    pub stuck: Vec<String>,
    /// Names of the live processes that have not loaded a new key. Nothing is stored anew or retired before they have.
    pub waiting_for: Vec<String>,
}

/// Refreshes the keyring, stores a few batches of secrets and tokens under their active keys, and retires keys that nothing names. Does
/// nothing more than refresh while another process works.
#[tracing::instrument(name = "app.keys.advance_rotations", skip_all)]
#[operation]
pub async fn advance_rotations(app: &App) -> Result<RotationStep, Error> {
    advance_by_batches(app, MAX_STEP_BATCHES).await
}

/// Does the same, with at most so many transactions.
#[operation]
pub async fn advance_by_batches(app: &App, max_batches: usize) -> Result<RotationStep, Error> {
    let keys = app.installation_keys()?;
    let records = keys.refresh_keyring(app).await?;
    let mut step = RotationStep::default();
    if !records.iter().any(is_superseded) {
        step.finished = true;
        return Ok(step);
    }
    postpone_activations(app, &records).await?;
    for _ in 0..max_batches {
        let Some(changed) = run_batch(app, &keys, &records, &mut step).await? else {
            return Ok(step);
        };
        step.changed += changed;
        if changed == 0 {
            break;
        }
    }
    for secret in &step.stuck {
        tracing::error!(
            event = "keys.secret_stuck",
            secret,
            "a secret cannot be opened and keeps its key from being retired: set or delete it"
        );
    }
    if !step.waiting_for.is_empty() {
        tracing::warn!(
            event = "keys.rotation_waits",
            processes = step.waiting_for.join(", "),
            "a rotation waits: these processes have not loaded the new key"
        );
    }
    step.retired = retire_unused_keys(app, &keys).await?;
    let mut conn = app.conn().await?;
    step.finished = !keyring::list_keys(&mut conn).await?.iter().any(is_superseded);
    drop(conn);
    if step.retired > 0 {
        keys.refresh_keyring(app).await?;
    }
    Ok(step)
}

/// Returns whether a newer key takes over from this one.
fn is_superseded(record: &KeyRecord) -> bool {
    record.retired_at.is_none() && record.retires_at.is_some()
}

/// Returns whether a newer key of a purpose takes over from an older one.
fn is_rotating(records: &[KeyRecord], purpose: KeyPurpose) -> bool {
    records.iter().any(|record| record.purpose == purpose && is_superseded(record))
}

/// Returns the key of a purpose that takes over. The records are in the order of their activation.
fn newest_key(records: &[KeyRecord], purpose: KeyPurpose) -> Option<&KeyRecord> {
    records.iter().rfind(|record| {
        record.purpose == purpose && record.retired_at.is_none() && !is_superseded(record)
    })
}

/// Returns whether a key is used, and every process that has it uses it by now.
fn is_settled(keys: &InstallationKeys, key: &KeyRecord, now: OffsetDateTime) -> bool {
    keys.active_key(key.purpose) == key.id && key.activates_at + SETTLE_TIME <= now
}

/// Stores one batch anew. Returns how many there were, or `None` while another process works.
async fn run_batch(
    app: &App,
    keys: &InstallationKeys,
    records: &[KeyRecord],
    step: &mut RotationStep,
) -> Result<Option<u64>, Error> {
    let now = app.environment().now();
    let mut tx = app.begin().await?;
    if !keyring::try_lock_rotation(&mut tx).await? {
        return Ok(None);
    }
    let mut changed = 0;
    let (mut loaded, mut waiting_for) = (Vec::new(), Vec::new());
    for purpose in KeyPurpose::ALL {
        let key = newest_key(records, purpose).filter(|_| is_rotating(records, purpose));
        let Some(key) = key else { continue };
        let lagging = list_lagging_processes(&mut tx, key.id, now).await?;
        if lagging.is_empty() && is_settled(keys, key, now) {
            loaded.push(purpose);
        }
        waiting_for.extend(lagging);
    }
    waiting_for.sort_unstable();
    waiting_for.dedup();
    step.waiting_for = waiting_for;
    if loaded.contains(&KeyPurpose::Master) {
        step.stuck.clear();
        changed += reseal_secrets(app, keys, &mut tx, &mut step.stuck).await?;
    }
    if loaded.contains(&KeyPurpose::Token) {
        let old = records
            .iter()
            .filter(|record| record.purpose == KeyPurpose::Token && is_superseded(record));
        for record in old {
            changed += rehash_tokens(keys, &mut tx, record).await?;
        }
    }
    tx.commit().await.map_err(DbError::from)?;
    Ok(Some(changed))
}

/// A sealed secret, with what it is bound to.
struct SealedSecretRow {
    name: String,
    column: SealedColumn,
    place: Vec<u8>,
    sealed: Vec<u8>,
}

/// Seals secrets anew that name another key than the active one.
async fn reseal_secrets(
    app: &App,
    keys: &InstallationKeys,
    conn: &mut Conn,
    stuck: &mut Vec<String>,
) -> Result<u64, Error> {
    let active = keys.active_key(KeyPurpose::Master);
    let mut secrets = list_credentials(conn).await?;
    secrets.extend(list_channel_secrets(conn).await?);
    let limit = i64::try_from(ROTATION_BATCH).unwrap_or(i64::MAX);
    for row in keyring::list_sealed_arguments(conn, active, limit).await? {
        let agent = AgentTokenId::from_uuid(row.agent);
        secrets.push(SealedSecretRow {
            name: format!("arguments of the approval {}", row.approval),
            column: SealedColumn::Approval(row.approval),
            place: approvals::approval_associated_data(agent, &row.digest, &row.tool),
            sealed: row.sealed,
        });
    }
    for (user, sealed) in keyring::list_sealed_second_factors(conn, active, limit).await? {
        secrets.push(SealedSecretRow {
            name: format!("second factor of the user {}", UserId::from_uuid(user)),
            column: SealedColumn::SecondFactor(user),
            place: second_factor::secret_associated_data(UserId::from_uuid(user)),
            sealed,
        });
    }
    for (grant, sealed) in keyring::list_sealed_grants(conn, active, limit).await? {
        secrets.push(SealedSecretRow {
            name: format!("tokens of the grant {}", ProviderGrantId::from_uuid(grant)),
            column: SealedColumn::ProviderGrant(grant),
            place: provider_grants::token_associated_data(ProviderGrantId::from_uuid(grant)),
            sealed,
        });
    }
    let old = secrets.into_iter().filter(|secret| sealing_key_of(&secret.sealed) != active);
    let mut changed = 0;
    for secret in old.take(ROTATION_BATCH) {
        let Ok(opened) = keys.unseal_secret(&secret.place, &secret.sealed) else {
            stuck.push(secret.name);
            continue;
        };
        let sealed = keys.seal_secret(app.environment(), &secret.place, &opened)?;
        let replaced = keyring::replace_sealed(conn, &secret.column, &secret.sealed, &sealed);
        changed += u64::from(replaced.await?);
    }
    Ok(changed)
}

/// Lists the sealed credentials of providers, tool servers, forges, projects, identity providers and audit sinks.
async fn list_credentials(conn: &mut Conn) -> Result<Vec<SealedSecretRow>, Error> {
    let mut secrets = Vec::new();
    let providers = stored_models::list_providers(conn).await?;
    for key in stored_models::list_provider_keys(conn).await? {
        let Some(owner) = providers.iter().find(|it| it.id == key.provider) else { continue };
        secrets.push(SealedSecretRow {
            name: format!("key `{}` of the provider `{}`", key.label, owner.name),
            column: SealedColumn::ProviderKey(key.id.as_uuid()),
            place: registry::provider_key_associated_data(key.id, owner)?,
            sealed: key.sealed,
        });
    }
    for server in tool_servers::list_tool_servers(conn).await? {
        let Some(sealed) = server.sealed else { continue };
        let id = server.id.as_uuid();
        secrets.push(SealedSecretRow {
            name: format!("credentials of the tool server `{}`", server.name),
            column: SealedColumn::ToolServer(id),
            place: id.as_bytes().to_vec(),
            sealed,
        });
    }
    for remote in stored_forges::list_remotes(conn).await? {
        let project = remote.project;
        secrets.push(SealedSecretRow {
            name: format!("forge credential of the project {project}"),
            column: SealedColumn::ForgeCredential(project.as_uuid()),
            place: forges::credential_associated_data(&remote),
            sealed: remote.credential,
        });
        secrets.push(SealedSecretRow {
            name: format!("webhook secret of the project {project}"),
            column: SealedColumn::WebhookSecret(project.as_uuid()),
            place: forges::webhook_associated_data(project),
            sealed: remote.webhook_secret,
        });
    }
    for secret in stored_environments::list_sealed_secrets(conn, None).await? {
        let project = secret.project;
        secrets.push(SealedSecretRow {
            name: format!("secret `{}` of the project {project}", secret.name),
            place: environments::secret_associated_data(project, &secret.name),
            column: SealedColumn::ProjectSecret(project.as_uuid(), secret.name),
            sealed: secret.sealed,
        });
    }
    for provider in stored_providers::list_identity_providers(conn).await? {
        let Some(sealed) = provider.sealed_secret else { continue };
        secrets.push(SealedSecretRow {
            name: format!("secret of the identity provider `{}`", provider.name),
            column: SealedColumn::IdentityProvider(provider.id.as_uuid()),
            place: identity_providers::secret_associated_data(provider.id, &provider.issuer),
            sealed,
        });
    }
    for sink in audit_export::list_sinks(conn).await? {
        let Some(sealed) = sink.sealed else { continue };
        secrets.push(SealedSecretRow {
            name: format!("secret of the audit sink `{}`", sink.name),
            column: SealedColumn::AuditSink(sink.id),
            place: sinks::sink_associated_data(sink.id),
            sealed,
        });
    }
    Ok(secrets)
}

/// Lists the sealed secrets of notification channels, and the key of the installation for web push.
async fn list_channel_secrets(conn: &mut Conn) -> Result<Vec<SealedSecretRow>, Error> {
    let mut secrets = Vec::new();
    let mut add = |id: ChannelId, column: SealedColumn, sealed: Vec<u8>| {
        secrets.push(SealedSecretRow {
            name: format!("secret of the notification channel {id}"),
            column,
            place: channel_associated_data(id),
            sealed,
        });
    };
    for channel in stored_channels::list_sealed_channels(conn).await? {
        let id = channel.id;
        if let Some(sealed) = channel.sealed {
            add(id, SealedColumn::ChannelSecret(id.as_uuid()), sealed);
        }
        if let Some((sealed, _)) = channel.old {
            add(id, SealedColumn::OldChannelSecret(id.as_uuid()), sealed);
        }
    }
    if let Some(sealed) = web_push::find_web_push_key(conn).await? {
        secrets.push(SealedSecretRow {
            name: "private key for web push".to_owned(),
            column: SealedColumn::WebPushKey,
            place: WEB_PUSH_KEY_PLACE.to_vec(),
            sealed,
        });
    }
    Ok(secrets)
}

/// Stores tokens anew that name a superseded key.
async fn rehash_tokens(
    keys: &InstallationKeys,
    conn: &mut Conn,
    record: &KeyRecord,
) -> Result<u64, Error> {
    let active = keys.active_key(KeyPurpose::Token);
    let limit = i64::try_from(ROTATION_BATCH).unwrap_or(i64::MAX);
    let mut changed = 0;
    for table in TokenTable::ALL {
        let old = keyring::list_token_hashes(conn, table, record.id, limit).await?;
        let rehash = |hash: &[u8; 32]| {
            keys.rehash_token(&TokenHash { key: record.id, hash: *hash }).map(|new| new.hash)
        };
        let Some(new) = old.iter().map(rehash).collect::<Option<Vec<_>>>() else {
            return Err(Error::Internal(anyhow::anyhow!("the keyring lacks a key of tokens")));
        };
        if !old.is_empty() {
            changed += keyring::replace_token_hashes(conn, table, &old, &new, active).await?;
        }
    }
    Ok(changed)
}

/// Retires superseded keys that nothing names. Returns how many.
async fn retire_unused_keys(app: &App, keys: &InstallationKeys) -> Result<u64, Error> {
    let request =
        OperationRequest { caller: None, trace: app.environment().new_trace_id(), attempt: None };
    let mut ctx = app.begin_transaction(&request).await?;
    keyring::lock_keyring(ctx.conn()).await?;
    let records = keyring::list_keys(ctx.conn()).await?;
    let now = ctx.now;
    // A key has a successor that every process has and uses by now: without one there would be nothing to sign or seal with.
    let mut succeeded = Vec::new();
    for key in KeyPurpose::ALL.into_iter().filter_map(|purpose| newest_key(&records, purpose)) {
        if is_settled(keys, key, now)
            && list_lagging_processes(ctx.conn(), key.id, now).await?.is_empty()
        {
            succeeded.push(key.purpose);
        }
    }
    let is_over = |record: &&KeyRecord| {
        is_superseded(record)
            && record.retires_at.is_some_and(|end| end + SETTLE_TIME <= now)
            && succeeded.contains(&record.purpose)
    };
    let over: Vec<_> = records.iter().filter(is_over).collect();
    if over.is_empty() {
        return Ok(0);
    }
    let uses = keyring::count_key_uses(ctx.conn()).await?;
    let mut retired = 0;
    for record in over {
        // Signatures name their key for ever; its public key stays.
        let named = record.purpose != KeyPurpose::Signing
            && uses.iter().any(|named| named.key == record.id);
        if !named {
            platform_keys::retire_key(&mut ctx, Some(keys), record).await?;
            retired += 1;
        }
    }
    app.commit_operation(ctx).await?;
    Ok(retired)
}

/// Returns the keys of the installation with their age and use. Only its admins may see them.
#[tracing::instrument(name = "app.keys.list_keys", skip_all)]
#[operation]
pub async fn list_keys(app: &App, request: &OperationRequest) -> Result<KeyringView, Error> {
    let permitted = app
        .read(request, |ctx| Box::pin(async move { ctx.require_role(UserRole::Admin).map(drop) }));
    permitted.await?;
    describe_keyring(app).await
}

/// Returns the keys of the installation with their age and use, for an operator at the machine.
#[operation]
pub async fn describe_keyring(app: &App) -> Result<KeyringView, Error> {
    let (records, uses) = platform_keys::load_rotation_state(app).await?;
    let now = app.environment().now();
    let views: Vec<_> =
        records.iter().map(|record| to_key_view(record, &records, &uses, now)).collect();
    let rotating = records.iter().any(is_superseded);
    let is_old = |named: &&KeyUse| {
        records.iter().any(|record| {
            record.id == named.key && is_superseded(record) && record.purpose != KeyPurpose::Signing
        })
    };
    let remaining: i64 = uses.iter().filter(is_old).map(|named| named.count).sum();
    let mut waiting_for = Vec::new();
    let mut conn = app.conn().await?;
    for key in KeyPurpose::ALL.into_iter().filter_map(|purpose| newest_key(&records, purpose)) {
        // A process that refreshes takes a moment.
        let is_late = now - key.created_at >= SETTLE_TIME;
        if is_late && is_rotating(&records, key.purpose) {
            waiting_for.extend(list_lagging_processes(&mut conn, key.id, now).await?);
        }
    }
    drop(conn);
    waiting_for.sort_unstable();
    waiting_for.dedup();
    Ok(KeyringView {
        keys: views,
        rotating,
        remaining: remaining.unsigned_abs(),
        waiting_for,
        master_key: Some(app.installation_keys()?.describe_master_key(app).await?),
    })
}

fn to_key_view(
    record: &KeyRecord,
    records: &[KeyRecord],
    uses: &[KeyUse],
    now: OffsetDateTime,
) -> KeyView {
    let newest_active = records.iter().rfind(|it| {
        it.purpose == record.purpose && it.retired_at.is_none() && it.activates_at <= now
    });
    let state = if record.retired_at.is_some() {
        "retired"
    } else if record.activates_at > now {
        "staged"
    } else if newest_active.is_some_and(|it| it.id == record.id) {
        "active"
    } else {
        "retiring"
    };
    let named = uses.iter().filter(|named| named.key == record.id);
    KeyView {
        key_id: record.id.to_string(),
        purpose: record.purpose.as_str().to_owned(),
        state: state.to_owned(),
        created_at: record.created_at,
        activates_at: record.activates_at,
        retires_at: record.retires_at,
        retired_at: record.retired_at,
        derived: record.derived,
        unkeyed: record.id == FIRST_TOKEN_KEY,
        wrapped_by: record.wrapped.as_ref().map(|wrapped| wrapped.by.clone()),
        public_key: record.public_key.map(|key| data_encoding::HEXLOWER.encode(&key)),
        uses: named
            .map(|named| KeyUseView { kind: named.kind.clone(), count: named.count.unsigned_abs() })
            .collect(),
    }
}

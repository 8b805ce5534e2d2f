//! The SCIM 2.0 directory: provisions users and groups with a token of its own.
//!
//! **Invariant**: an operation of the directory takes a [`ScimClient`], which only [`App::authenticate_scim`] makes. It sees and
//! changes the accounts and groups that the directory manages and no others, and it gives no role: an admin binds roles to its
//! groups, and a group without a binding opens nothing.

use std::collections::BTreeSet;

use cynode_core::{
    accounts::{ScimToken, User, UserState},
    events::EventKind,
    ids::{GroupId, ScimTokenId, UserId},
    names::{GroupName, Handle},
    roles::UserRole,
    scim::{
        DescribedGroup, DescribedUser, GROUP_SCHEMA, GroupChange, ScimFilter, USER_SCHEMA,
        UserChange,
    },
};
use cynode_db::{
    DbError,
    identity::{
        accounts::{self, DisabledBy},
        groups,
        scim::{self, ScimGroupRecord, ScimUserKey, ScimUserRecord},
    },
};
use cynode_wire::identity::accounts::{CreateScimToken, CreatedScimToken};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    App, Ctx, Error,
    identity::users::{self, EndedAccess},
    platform::{
        context::EventDraft,
        operation,
        tokens::{PresentedToken, TokenKind},
    },
};

/// Days until a token expires that names no expiry.
const DEFAULT_TOKEN_DAYS: u16 = 365;

/// Maximum number of resources in a list.
pub const MAX_SCIM_PAGE: i64 = 200;

/// Maximum number of handles and group names that are tried for one name of the directory.
const MAX_NAME_ATTEMPTS: u32 = 1000;

/// Maximum number of users that one event names. A larger change of a group is several events.
const MAX_EVENT_MEMBERS: usize = 500;

/// A directory whose token was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScimClient {
    token: ScimTokenId,
}

/// A page of a list: the position of the first resource, from 1, and the maximum number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScimPage {
    /// Position of the first resource, from 1.
    pub start_index: i64,
    /// Maximum number of resources.
    pub count: i64,
}

/// A list of resources.
#[derive(Clone, Debug, PartialEq)]
pub struct ScimList {
    /// How many there are in all.
    pub total: i64,
    /// Those of the page.
    pub resources: Vec<Value>,
}

impl App {
    /// Returns the directory that a token belongs to. Every other kind of token is refused.
    #[tracing::instrument(name = "app.scim.authenticate_scim", skip_all)]
    pub async fn authenticate_scim(&self, shown: &PresentedToken) -> Result<ScimClient, Error> {
        if shown.kind != TokenKind::Scim {
            return Err(Error::Unauthenticated);
        }
        let found = {
            let (mut conn, now) = (self.conn().await?, self.environment().now());
            let hashes = self.token_keys().token_hashes(&shown.hash);
            scim::find_scim_token(&mut conn, &hashes, now).await?
        };
        let token = found.ok_or(Error::Unauthenticated)?;
        self.count_directory_request(token)?;
        self.note_scim_use(token).await;
        Ok(ScimClient { token })
    }
}

/// Issues a token for a directory. Only the answer contains the secret.
#[tracing::instrument(name = "app.scim.create_scim_token", skip_all)]
#[operation]
pub async fn create_scim_token(
    ctx: &mut Ctx,
    body: CreateScimToken,
) -> Result<CreatedScimToken, Error> {
    ctx.require_session("issue a token for a directory")?;
    let caller = ctx.require_role(UserRole::Admin)?;
    let days = body.expires_in_days.unwrap_or(DEFAULT_TOKEN_DAYS);
    if !(1..=3650).contains(&days) {
        return Err(Error::Invalid("`expires_in_days` is 1 to 3650".into()));
    }
    let (token, hash) = ctx.issue_token(TokenKind::Scim);
    let scim_token = ScimToken {
        id: ScimTokenId::from_uuid(ctx.new_uuid()),
        name: body.name,
        created_by: caller.user,
        created_at: ctx.now,
        expires_at: ctx.now + Duration::days(days.into()),
        revoked_at: None,
        last_used_at: None,
    };
    scim::insert_scim_token(ctx.conn(), &scim_token, &hash).await?;
    let data = json!({ "scim_token_id": scim_token.id, "name": scim_token.name });
    ctx.record_event(EventDraft::new(EventKind::ScimTokenIssued, data)).await?;
    Ok(CreatedScimToken { token, scim_token: scim_token.into() })
}

/// Lists the tokens of directories, newest first.
#[tracing::instrument(name = "app.scim.list_scim_tokens", skip_all)]
#[operation]
pub async fn list_scim_tokens(ctx: &mut Ctx) -> Result<Vec<ScimToken>, Error> {
    ctx.require_role(UserRole::Admin)?;
    Ok(scim::list_scim_tokens(ctx.conn()).await?)
}

/// Revokes the token of a directory. It stops working with the next request.
#[tracing::instrument(name = "app.scim.revoke_scim_token", skip_all)]
#[operation]
pub async fn revoke_scim_token(ctx: &mut Ctx, id: ScimTokenId) -> Result<ScimToken, Error> {
    ctx.require_role(UserRole::Admin)?;
    let now = ctx.now;
    let token = scim::revoke_scim_token(ctx.conn(), id, now).await?;
    let token = token.ok_or_else(|| Error::not_found("token of a directory", id))?;
    let data = json!({ "scim_token_id": id });
    ctx.record_event(EventDraft::new(EventKind::ScimTokenRevoked, data)).await?;
    Ok(token)
}

fn format_time(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}

/// Adds `meta` with a version that changes with the content.
fn with_meta(mut resource: Value, kind: &str, path: &str, times: [OffsetDateTime; 2]) -> Value {
    let digest: [u8; 32] = Sha256::digest(resource.to_string().as_bytes()).into();
    let version = HEXLOWER.encode(&digest).chars().take(32).collect::<String>();
    let [created, modified] = times;
    if let Some(fields) = resource.as_object_mut() {
        fields.insert(
            "meta".to_owned(),
            json!({
                "resourceType": kind,
                "created": format_time(created),
                "lastModified": format_time(modified),
                "location": path,
                "version": format!("W/\"{version}\""),
            }),
        );
    }
    resource
}

/// Returns an account as SCIM shows it.
fn user_resource(record: &ScimUserRecord) -> Value {
    let mut resource = json!({
        "schemas": [USER_SCHEMA],
        "id": record.user,
        "userName": record.user_name,
        "displayName": record.display_name,
        "name": { "formatted": record.display_name },
        "active": record.active,
    });
    if let Some(id) = &record.external_id {
        resource["externalId"] = json!(id);
    }
    if let Some(email) = &record.email {
        resource["emails"] = json!([{ "value": email, "type": "work", "primary": true }]);
    }
    let path = format!("/scim/v2/Users/{}", record.user);
    with_meta(resource, "User", &path, [record.created_at, record.updated_at])
}

/// Returns a group as SCIM shows it.
fn group_resource(record: &ScimGroupRecord) -> Value {
    let members: Vec<Value> = record
        .members
        .iter()
        .map(|user| json!({ "value": user, "$ref": format!("/scim/v2/Users/{user}"), "type": "User" }))
        .collect();
    let mut resource = json!({
        "schemas": [GROUP_SCHEMA],
        "id": record.group,
        "displayName": record.display_name,
        "members": members,
    });
    if let Some(id) = &record.external_id {
        resource["externalId"] = json!(id);
    }
    let path = format!("/scim/v2/Groups/{}", record.group);
    with_meta(resource, "Group", &path, [record.created_at, record.updated_at])
}

/// Rejects a change of a resource that is not at the version that the directory read.
fn require_version(resource: &Value, expected: Option<&str>) -> Result<(), Error> {
    let (Some(expected), Some(there)) = (expected, resource["meta"]["version"].as_str()) else {
        return Ok(());
    };
    let is_same = |wanted: &str| {
        let wanted = wanted.trim();
        wanted == "*" || wanted.trim_start_matches("W/") == there.trim_start_matches("W/")
    };
    if expected.split(',').any(is_same) {
        return Ok(());
    }
    let key = resource["id"].as_str().unwrap_or_default().to_owned();
    Err(Error::VersionConflict { key, expected: 0, actual: 0 })
}

/// Returns one account of the directory.
#[tracing::instrument(name = "app.scim.get_user", skip_all, fields(user.id = %id))]
#[operation]
pub async fn get_user(ctx: &mut Ctx, _client: ScimClient, id: UserId) -> Result<Value, Error> {
    let record = scim::lock_scim_user(ctx.conn(), id).await?;
    Ok(user_resource(&record.ok_or_else(|| Error::not_found("user", id))?))
}

/// Lists the accounts of the directory.
#[tracing::instrument(name = "app.scim.list_users", skip_all)]
#[operation]
pub async fn list_users(
    ctx: &mut Ctx,
    _client: ScimClient,
    filter: Option<&ScimFilter>,
    page: ScimPage,
) -> Result<ScimList, Error> {
    let Some(filter) = filter else {
        let total = scim::count_scim_users(ctx.conn()).await?;
        let (offset, limit) = (page.start_index - 1, page.count);
        let found = scim::list_scim_users(ctx.conn(), offset, limit).await?;
        return Ok(ScimList { total, resources: found.iter().map(user_resource).collect() });
    };
    let key = match filter {
        ScimFilter { user_name: Some(name), .. } => ScimUserKey::UserName(name),
        ScimFilter { external_id: Some(id), .. } => ScimUserKey::ExternalId(id),
        ScimFilter { display_name: Some(name), .. } => ScimUserKey::DisplayName(name),
        _ => return Err(Error::Invalid("the filter names no attribute".into())),
    };
    let mut found = scim::find_scim_users(ctx.conn(), key).await?;
    found.retain(|record| fits_user(filter, record));
    Ok(cut_page(found.iter().map(user_resource).collect(), page))
}

fn fits_user(filter: &ScimFilter, record: &ScimUserRecord) -> bool {
    let same = |wanted: Option<&str>, there: &str| {
        wanted.is_none_or(|wanted| wanted.to_lowercase() == there.to_lowercase())
    };
    let external = filter.external_id.is_none() || filter.external_id == record.external_id;
    !filter.is_impossible
        && external
        && same(filter.user_name.as_deref(), &record.user_name)
        && same(filter.display_name.as_deref(), record.display_name.as_str())
}

/// Cuts a page out of all resources.
fn cut_page(all: Vec<Value>, page: ScimPage) -> ScimList {
    let total = i64::try_from(all.len()).unwrap_or(i64::MAX);
    let skip = usize::try_from(page.start_index - 1).unwrap_or_default();
    let take = usize::try_from(page.count).unwrap_or_default();
    ScimList { total, resources: all.into_iter().skip(skip).take(take).collect() }
}

/// Creates an account without a password and without a role. An account that the directory does not manage keeps its handle.
#[tracing::instrument(name = "app.scim.create_user", skip_all)]
#[operation]
pub async fn create_user(
    ctx: &mut Ctx,
    client: ScimClient,
    described: DescribedUser,
) -> Result<Value, Error> {
    let (now, active) = (ctx.now, described.active.unwrap_or(true));
    let state = if active { UserState::Active } else { UserState::Disabled { at: now } };
    let user = User {
        id: UserId::from_uuid(ctx.new_uuid()),
        handle: choose_handle(ctx, &described.user_name).await?,
        display_name: described.display_name,
        email: described.email,
        role: None,
        can_create_projects: false,
        state,
        created_at: now,
    };
    accounts::insert_user(ctx.conn(), &user).await.map_err(to_user_error)?;
    if state != UserState::Active {
        let by = DisabledBy::Directory;
        accounts::set_user_state(ctx.conn(), user.id, state, by, now).await?;
    }
    let external_id = described.external_id.as_deref();
    scim::insert_scim_user(ctx.conn(), user.id, &described.user_name, external_id, now)
        .await
        .map_err(to_user_error)?;
    users::set_default_budget(ctx, user.id).await?;
    let data = json!({
        "user_id": user.id, "active": active, "scim_token_id": client.token,
    });
    ctx.record_event(EventDraft::new(EventKind::UserCreated, data).with_subject(user.id)).await?;
    get_user(ctx, client, user.id).await
}

/// Returns a free handle for a name of the directory.
async fn choose_handle(ctx: &mut Ctx, user_name: &str) -> Result<Handle, Error> {
    let base = Handle::derive_handle(user_name);
    for number in 1..=MAX_NAME_ATTEMPTS {
        let handle = base.with_number(number);
        if !scim::has_handle(ctx.conn(), &handle).await? {
            return Ok(handle);
        }
    }
    Err(Error::AlreadyExists { what: "too many users with the handle", name: base.to_string() })
}

fn to_user_error(error: DbError) -> Error {
    if error.is_refused_by("scim_users_user_name_unique") {
        let what = "a user of the directory with this `userName`";
        return Error::AlreadyExists { what, name: "userName".to_owned() };
    }
    if error.is_refused_by("users_handle_unique") {
        return Error::Conflict("another user got this handle at the same moment: try again");
    }
    error.into()
}

/// Changes an account of the directory. Disabling it ends its sessions, API keys, agent tokens and notification channels at
/// once.
#[tracing::instrument(name = "app.scim.update_user", skip_all, fields(user.id = %id))]
#[operation]
pub async fn update_user(
    ctx: &mut Ctx,
    client: ScimClient,
    id: UserId,
    changes: Vec<UserChange>,
    expected: Option<&str>,
) -> Result<Value, Error> {
    let before = lock_user(ctx, id, expected).await?;
    let mut record = before.clone();
    for change in changes {
        match change {
            UserChange::UserName(name) => record.user_name = name,
            UserChange::ExternalId(id) => record.external_id = id,
            UserChange::DisplayName(name) => record.display_name = name,
            UserChange::Email(email) => record.email = email,
            UserChange::Active(active) => record.active = active,
        }
    }
    // What an admin disabled, an admin lifts. The directory is told that the account stays as it is.
    if record.active && !before.active && !scim::is_disabled_by_directory(ctx.conn(), id).await? {
        record.active = false;
    }
    if record == before {
        return Ok(user_resource(&before));
    }
    let now = ctx.now;
    scim::update_scim_user(ctx.conn(), &record, now).await.map_err(to_user_error)?;
    let ended = match (before.active, record.active) {
        (true, false) => disable_user(ctx, id).await?,
        (false, true) => {
            let (state, by) = (UserState::Active, DisabledBy::Directory);
            accounts::set_user_state(ctx.conn(), id, state, by, now).await?;
            ctx.invalidate_policy().await?;
            EndedAccess::default()
        }
        (true, true) | (false, false) => EndedAccess::default(),
    };
    record_user_update(ctx, client, &record, ended).await?;
    get_user(ctx, client, id).await
}

/// Returns the account, locked, at the version that the directory read.
async fn lock_user(
    ctx: &mut Ctx,
    id: UserId,
    expected: Option<&str>,
) -> Result<ScimUserRecord, Error> {
    let record = scim::lock_scim_user(ctx.conn(), id).await?;
    let record = record.ok_or_else(|| Error::not_found("user", id))?;
    require_version(&user_resource(&record), expected)?;
    Ok(record)
}

async fn disable_user(ctx: &mut Ctx, id: UserId) -> Result<EndedAccess, Error> {
    users::require_other_admin(ctx, id).await?;
    let now = ctx.now;
    let (state, by) = (UserState::Disabled { at: now }, DisabledBy::Directory);
    accounts::set_user_state(ctx.conn(), id, state, by, now).await?;
    ctx.invalidate_policy().await?;
    users::end_all_access(ctx, id, "the directory disabled the account").await
}

async fn record_user_update(
    ctx: &mut Ctx,
    client: ScimClient,
    record: &ScimUserRecord,
    ended: EndedAccess,
) -> Result<(), Error> {
    let data = json!({
        "user_id": record.user,
        "active": record.active,
        "scim_token_id": client.token,
        "sessions_ended": ended.sessions,
        "keys_revoked": ended.keys,
        "agent_tokens_revoked": ended.agent_tokens,
        "channels_switched_off": ended.channels,
    });
    let told = EventDraft::new(EventKind::UserUpdated, data);
    ctx.record_event(told.with_subject(record.user)).await
}

/// Takes an account from the directory. What the person did stays, so the account stays, too, disabled and in no group of the
/// directory.
#[tracing::instrument(name = "app.scim.delete_user", skip_all, fields(user.id = %id))]
#[operation]
pub async fn delete_user(
    ctx: &mut Ctx,
    client: ScimClient,
    id: UserId,
    expected: Option<&str>,
) -> Result<(), Error> {
    let record = lock_user(ctx, id, expected).await?;
    let ended = if record.active { disable_user(ctx, id).await? } else { EndedAccess::default() };
    scim::leave_scim_groups(ctx.conn(), id).await?;
    scim::delete_scim_user(ctx.conn(), id).await?;
    record_user_update(ctx, client, &ScimUserRecord { active: false, ..record }, ended).await
}

/// Returns one group of the directory.
#[tracing::instrument(name = "app.scim.get_group", skip_all, fields(group.id = %id))]
#[operation]
pub async fn get_group(ctx: &mut Ctx, _client: ScimClient, id: GroupId) -> Result<Value, Error> {
    let record = scim::lock_scim_group(ctx.conn(), id).await?;
    Ok(group_resource(&record.ok_or_else(|| Error::not_found("group", id))?))
}

/// Lists the groups of the directory.
#[tracing::instrument(name = "app.scim.list_groups", skip_all)]
#[operation]
pub async fn list_groups(
    ctx: &mut Ctx,
    _client: ScimClient,
    filter: Option<&ScimFilter>,
    page: ScimPage,
) -> Result<ScimList, Error> {
    let name = filter.and_then(|filter| filter.display_name.as_deref());
    let id = filter.and_then(|filter| filter.external_id.as_deref());
    let mut found = scim::list_scim_groups(ctx.conn(), name, id).await?;
    if filter.is_some_and(|filter| filter.is_impossible) {
        found.clear();
    }
    Ok(cut_page(found.iter().map(group_resource).collect(), page))
}

/// Creates a group without a role.
#[tracing::instrument(name = "app.scim.create_group", skip_all)]
#[operation]
pub async fn create_group(
    ctx: &mut Ctx,
    client: ScimClient,
    described: DescribedGroup,
) -> Result<Value, Error> {
    let (id, now) = (GroupId::from_uuid(ctx.new_uuid()), ctx.now);
    let name = choose_group_name(ctx, &described.display_name).await?;
    groups::insert_group(ctx.conn(), id, &name, now).await.map_err(to_group_error)?;
    let external_id = described.external_id.as_deref();
    scim::insert_scim_group(ctx.conn(), id, &described.display_name, external_id, now)
        .await
        .map_err(to_group_error)?;
    let data = json!({ "group_id": id, "scim_token_id": client.token });
    ctx.record_event(EventDraft::new(EventKind::GroupCreated, data)).await?;
    add_managed_members(ctx, id, &described.members).await?;
    if !described.members.is_empty() {
        record_group_update(ctx, client, id, &described.members, &[]).await?;
    }
    get_group(ctx, client, id).await
}

/// Records a change of a group with the users who came and went: a group may have a role.
async fn record_group_update(
    ctx: &mut Ctx,
    client: ScimClient,
    id: GroupId,
    added: &[UserId],
    removed: &[UserId],
) -> Result<(), Error> {
    let (mut added, mut removed) =
        (added.chunks(MAX_EVENT_MEMBERS), removed.chunks(MAX_EVENT_MEMBERS));
    let mut next = (added.next(), removed.next());
    loop {
        let data = json!({
            "group_id": id,
            "scim_token_id": client.token,
            "added": next.0.unwrap_or_default(),
            "removed": next.1.unwrap_or_default(),
        });
        ctx.record_event(EventDraft::new(EventKind::GroupUpdated, data)).await?;
        next = (added.next(), removed.next());
        if next == (None, None) {
            return Ok(());
        }
    }
}

/// Returns a free name of a group for a name of the directory.
async fn choose_group_name(ctx: &mut Ctx, display_name: &str) -> Result<GroupName, Error> {
    let base = GroupName::derive_name(display_name);
    for number in 1..=MAX_NAME_ATTEMPTS {
        let name = base.with_number(number);
        if !scim::has_group_name(ctx.conn(), &name).await? {
            return Ok(name);
        }
    }
    Err(Error::AlreadyExists { what: "too many groups with the name", name: base.to_string() })
}

fn to_group_error(error: DbError) -> Error {
    if error.is_refused_by("scim_groups_display_name_unique") {
        let what = "a group of the directory with this `displayName`";
        return Error::AlreadyExists { what, name: "displayName".to_owned() };
    }
    if error.is_refused_by("groups_name_unique") {
        return Error::Conflict("another group got this name at the same moment: try again");
    }
    error.into()
}

/// Adds members. Rejects users whom the directory does not manage.
async fn add_managed_members(ctx: &mut Ctx, id: GroupId, users: &[UserId]) -> Result<(), Error> {
    if users.is_empty() {
        return Ok(());
    }
    let managed = scim::list_managed_users(ctx.conn(), users).await?;
    if let Some(missing) = users.iter().find(|user| !managed.contains(user)) {
        return Err(Error::Invalid(format!(
            "`members` names {missing}, who is not of the directory"
        )));
    }
    let now = ctx.now;
    groups::add_members(ctx.conn(), id, users, now).await?;
    Ok(())
}

/// Changes a group of the directory. Members whom the directory does not manage stay.
#[tracing::instrument(name = "app.scim.update_group", skip_all, fields(group.id = %id))]
#[operation]
pub async fn update_group(
    ctx: &mut Ctx,
    client: ScimClient,
    id: GroupId,
    changes: Vec<GroupChange>,
    expected: Option<&str>,
) -> Result<Value, Error> {
    let before = lock_group(ctx, id, expected).await?;
    let (mut record, now) = (before.clone(), ctx.now);
    let there: BTreeSet<UserId> = before.members.iter().copied().collect();
    for change in changes {
        match change {
            GroupChange::DisplayName(name) => record.display_name = name,
            GroupChange::ExternalId(id) => record.external_id = id,
            GroupChange::AddMembers(users) => add_managed_members(ctx, id, &users).await?,
            GroupChange::RemoveMembers(users) => remove_managed_members(ctx, id, &users).await?,
            GroupChange::ReplaceMembers(users) => {
                let kept: BTreeSet<UserId> = users.iter().copied().collect();
                let members = lock_members(ctx, id).await?;
                let gone: Vec<UserId> = members.difference(&kept).copied().collect();
                remove_managed_members(ctx, id, &gone).await?;
                add_managed_members(ctx, id, &users).await?;
            }
        }
    }
    let members = lock_members(ctx, id).await?;
    let added: Vec<UserId> = members.difference(&there).copied().collect();
    let removed: Vec<UserId> = there.difference(&members).copied().collect();
    let is_same = added.is_empty() && removed.is_empty();
    // A directory repeats what it knows about all of its groups again and again.
    if is_same && record == before {
        return Ok(group_resource(&before));
    }
    scim::update_scim_group(ctx.conn(), &record, now).await.map_err(to_group_error)?;
    if !is_same {
        // The preferences of these users may have changed, and whether they are admins.
        ctx.invalidate_policy().await?;
    }
    record_group_update(ctx, client, id, &added, &removed).await?;
    get_group(ctx, client, id).await
}

/// Returns the members of a group that the directory manages.
async fn lock_members(ctx: &mut Ctx, id: GroupId) -> Result<BTreeSet<UserId>, Error> {
    let there = scim::lock_scim_group(ctx.conn(), id).await?;
    Ok(there.into_iter().flat_map(|there| there.members).collect())
}

/// Takes users of the directory out of a group.
async fn remove_managed_members(ctx: &mut Ctx, id: GroupId, users: &[UserId]) -> Result<(), Error> {
    let managed = scim::list_managed_users(ctx.conn(), users).await?;
    groups::remove_members(ctx.conn(), id, &managed).await?;
    Ok(())
}

async fn lock_group(
    ctx: &mut Ctx,
    id: GroupId,
    expected: Option<&str>,
) -> Result<ScimGroupRecord, Error> {
    let record = scim::lock_scim_group(ctx.conn(), id).await?;
    let record = record.ok_or_else(|| Error::not_found("group", id))?;
    require_version(&group_resource(&record), expected)?;
    Ok(record)
}

/// Deletes a group of the directory, with its roles.
#[tracing::instrument(name = "app.scim.delete_group", skip_all, fields(group.id = %id))]
#[operation]
pub async fn delete_group(
    ctx: &mut Ctx,
    client: ScimClient,
    id: GroupId,
    expected: Option<&str>,
) -> Result<(), Error> {
    lock_group(ctx, id, expected).await?;
    groups::delete_group(ctx.conn(), id).await?;
    ctx.invalidate_policy().await?;
    let data = json!({ "group_id": id, "scim_token_id": client.token });
    ctx.record_event(EventDraft::new(EventKind::GroupDeleted, data)).await
}

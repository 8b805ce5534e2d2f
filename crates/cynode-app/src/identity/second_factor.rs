//! Second factors: one-time passwords by RFC 6238, and recovery codes that stand in for them once.
//!
//! The secret is sealed with the installation's key. A time step counts once, so that a code that somebody read along is worth
//! nothing. Wrong codes count for login throttling like wrong passwords. A code is short, so that an account also shows only a
//! few in an hour, from all sources together.

use cynode_core::{
    accounts::CallerCredential, events::EventKind, ids::UserId, roles::UserRole,
    settings::registry::ADMIN_SECOND_FACTOR_SETTING,
};
use cynode_db::identity::{
    accounts, authentication,
    second_factors::{self, TotpCredential},
};
use cynode_wire::identity::accounts::{
    RecoveryCodes, SecondFactorCode, SecondFactorEnrolment, SecondFactorView, SecretText,
};
use data_encoding::{BASE32_NOPAD, HEXLOWER};
use qrcode::{EcLevel, QrCode, render::svg};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use totp_rs::{Builder, Secret, Totp};

use crate::{
    App, AppEnvironment, AuthenticatedCaller, ClientSource, Ctx, Error, OperationRequest,
    identity::{
        own_password::PasswordProof,
        sessions::{self, LoginAttempt},
    },
    platform::{context::EventDraft, keys::InstallationKeys, operation, settings},
};

/// Number of recovery codes that a user gets.
const RECOVERY_CODE_COUNT: usize = 10;

/// Bytes of the secret: what RFC 4226 recommends.
const SECRET_BYTES: usize = 20;

/// Bytes of a recovery code. It is random, so that its hash needs no salt and no work factor.
const RECOVERY_CODE_BYTES: usize = 10;

/// What authenticators show as the issuer.
const ISSUER: &str = "CyNode";

/// Outcome of a check of the second factor at a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeCheck {
    /// The user has none.
    NotEnrolled,
    /// The user has one, and no code was sent.
    Missing,
    /// The code is right and is used up now.
    Accepted,
    /// The code is wrong, or was used before.
    Wrong,
}

/// Checks the code of a login, and uses it up.
pub(crate) async fn check_login_code(
    app: &App,
    ctx: &mut Ctx,
    user: UserId,
    code: Option<&SecretText>,
) -> Result<CodeCheck, Error> {
    let found = second_factors::lock_totp(ctx.conn(), user).await?;
    let Some(found) = found.filter(|found| found.confirmed_at.is_some()) else {
        return Ok(CodeCheck::NotEnrolled);
    };
    let Some(code) = code else { return Ok(CodeCheck::Missing) };
    app.count_second_factor_code(user)?;
    let keys = &app.gateway_parts()?.keys;
    let accepted = consume_code(ctx, keys, user, &found, code).await?;
    Ok(if accepted { CodeCheck::Accepted } else { CodeCheck::Wrong })
}

/// Uses up a code of the authenticator or a recovery code. Returns whether it was right.
async fn consume_code(
    ctx: &mut Ctx,
    keys: &InstallationKeys,
    user: UserId,
    found: &TotpCredential,
    code: &SecretText,
) -> Result<bool, Error> {
    let now = ctx.now;
    if let Some(step) = find_matching_step(keys, user, found, code, now)? {
        return Ok(second_factors::consume_step(ctx.conn(), user, step).await?);
    }
    let hash = hash_recovery_code(user, &code.0);
    if !second_factors::consume_recovery_code(ctx.conn(), user, &hash, now).await? {
        return Ok(false);
    }
    let left = second_factors::count_recovery_codes(ctx.conn(), user).await?;
    let data = json!({ "user_id": user, "codes_left": left });
    let told = EventDraft::new(EventKind::RecoveryCodeUsed, data);
    ctx.record_event(told.with_subject(user)).await?;
    Ok(true)
}

/// Returns the time step that a code belongs to, if it is one of the present ones.
fn find_matching_step(
    keys: &InstallationKeys,
    user: UserId,
    found: &TotpCredential,
    code: &SecretText,
    now: OffsetDateTime,
) -> Result<Option<i64>, Error> {
    let secret = keys.unseal_secret(&secret_associated_data(user), &found.sealed_secret)?;
    let wrong = || Error::Internal(anyhow::anyhow!("the secret of a second factor is malformed"));
    let secret: [u8; SECRET_BYTES] = secret.try_into().map_err(|_| wrong())?;
    let seconds = u64::try_from(now.unix_timestamp()).unwrap_or_default();
    let step = build_totp(secret)?.check(code.0.trim(), seconds);
    Ok(step.and_then(|step| i64::try_from(step).ok()))
}

fn build_totp(secret: [u8; SECRET_BYTES]) -> Result<Totp, Error> {
    let built = Builder::new().with_secret(Secret::new_stack(secret)).build();
    built.map_err(|error| Error::Internal(anyhow::anyhow!("no one-time passwords: {error:?}")))
}

/// Returns the associated data of the sealed secret of a second factor.
pub(crate) fn secret_associated_data(user: UserId) -> Vec<u8> {
    [b"second-factor".as_slice(), user.as_uuid().as_bytes()].concat()
}

/// Returns the hash of a recovery code, however it was typed.
fn hash_recovery_code(user: UserId, code: &str) -> [u8; 32] {
    let typed: String = code.chars().filter(char::is_ascii_alphanumeric).collect();
    let mut digest = Sha256::new();
    digest.update(b"recovery-code");
    digest.update(user.as_uuid().as_bytes());
    digest.update(typed.to_ascii_lowercase().as_bytes());
    digest.finalize().into()
}

/// Returns a new recovery code, in groups of five digits.
fn issue_recovery_code(environment: &AppEnvironment) -> String {
    let digits = HEXLOWER.encode(&environment.random_bytes::<RECOVERY_CODE_BYTES>());
    let groups: Vec<&str> =
        digits.as_bytes().chunks(5).filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join("-")
}

/// Returns whether the caller's role in the installation is withheld until a second factor is shown.
pub(crate) async fn is_role_withheld(
    ctx: &mut Ctx,
    caller: &AuthenticatedCaller,
) -> Result<bool, Error> {
    let is_person =
        matches!(caller.credential, CallerCredential::Session(_) | CallerCredential::ApiKey(_));
    if caller.role.is_some() || !is_person {
        return Ok(false);
    }
    is_required(ctx, caller.user).await
}

/// Returns whether the user is an admin of an installation whose admins need a second factor.
async fn is_required(ctx: &mut Ctx, user: UserId) -> Result<bool, Error> {
    let set = settings::setting_value(ctx.conn(), ADMIN_SECOND_FACTOR_SETTING).await?;
    if set != Some(Value::Bool(true)) {
        return Ok(false);
    }
    Ok(authentication::find_person_role(ctx.conn(), user).await? == Some(UserRole::Admin))
}

/// Returns the state of the caller's second factor.
#[tracing::instrument(name = "app.second_factor.get_second_factor", skip_all)]
#[operation]
pub async fn get_second_factor(ctx: &mut Ctx) -> Result<SecondFactorView, Error> {
    let caller = ctx.caller()?;
    let session_verified = match caller.credential {
        CallerCredential::Session(session) => {
            accounts::has_second_factor(ctx.conn(), session).await?
        }
        CallerCredential::ApiKey(_)
        | CallerCredential::Link(_)
        | CallerCredential::Agent(_)
        | CallerCredential::Schedule(_) => false,
    };
    let left = second_factors::count_recovery_codes(ctx.conn(), caller.user).await?;
    Ok(SecondFactorView {
        enrolled: second_factors::is_enrolled(ctx.conn(), caller.user).await?,
        session_verified,
        required: is_required(ctx, caller.user).await?,
        recovery_codes_left: u32::try_from(left).unwrap_or(u32::MAX),
    })
}

/// Begins an enrolment. Nothing changes for the next login until a code has confirmed it.
#[tracing::instrument(name = "app.second_factor.begin_enrolment", skip_all)]
#[operation]
pub async fn begin_enrolment(
    ctx: &mut Ctx,
    keys: &InstallationKeys,
    proof: &PasswordProof,
) -> Result<SecondFactorEnrolment, Error> {
    let (caller, _) = ctx.require_session("enrol a second factor")?;
    proof.require_current(ctx).await?;
    let user = accounts::get_user(ctx.conn(), caller.user).await?.ok_or(Error::Unauthenticated)?;
    let secret = ctx.environment().random_bytes::<SECRET_BYTES>();
    let place = secret_associated_data(caller.user);
    let sealed = keys.seal_secret(ctx.environment(), &place, &secret)?;
    let now = ctx.now;
    if !second_factors::begin_totp(ctx.conn(), caller.user, &sealed, now).await? {
        return Err(Error::Conflict(
            "this account has a second factor: delete it before you enrol another",
        ));
    }
    let secret = BASE32_NOPAD.encode(&secret);
    // A handle has letters, digits and dashes only, so that nothing needs escaping.
    let uri = format!(
        "otpauth://totp/{ISSUER}:{}?secret={secret}&issuer={ISSUER}&algorithm=SHA1&digits=6&period=30",
        user.handle
    );
    let qr_svg = draw_qr_code(&uri)?;
    Ok(SecondFactorEnrolment {
        secret: SecretText(secret),
        uri: SecretText(uri),
        qr_svg: SecretText(qr_svg),
    })
}

fn draw_qr_code(text: &str) -> Result<String, Error> {
    let code = QrCode::with_error_correction_level(text, EcLevel::M)
        .map_err(|error| Error::Internal(anyhow::anyhow!("no QR code: {error}")))?;
    Ok(code.render::<svg::Color<'_>>().min_dimensions(240, 240).build())
}

/// Confirms an enrolment with a code. From now on every login needs one. Returns the recovery codes.
#[tracing::instrument(name = "app.second_factor.confirm_enrolment", skip_all)]
#[operation]
pub async fn confirm_enrolment(
    ctx: &mut Ctx,
    keys: &InstallationKeys,
    body: &SecondFactorCode,
) -> Result<RecoveryCodes, Error> {
    let (caller, session) = ctx.require_session("enrol a second factor")?;
    let now = ctx.now;
    let found = second_factors::lock_totp(ctx.conn(), caller.user).await?;
    let Some(found) = found.filter(|found| found.confirmed_at.is_none()) else {
        return Err(Error::Conflict("no enrolment waits for a code: begin one"));
    };
    let step = find_matching_step(keys, caller.user, &found, &body.code, now)?;
    let step = step.ok_or_else(wrong_code_error)?;
    if !second_factors::confirm_totp(ctx.conn(), caller.user, step, now).await? {
        return Err(Error::Conflict("no enrolment waits for a code: begin one"));
    }
    accounts::mark_second_factor(ctx.conn(), session).await?;
    // Whoever had the password alone does not go on with it.
    sessions::end_user_sessions(ctx, caller.user, Some(session)).await?;
    let told = EventDraft::new(EventKind::SecondFactorEnrolled, json!({ "user_id": caller.user }));
    ctx.record_event(told.with_subject(caller.user)).await?;
    replace_recovery_codes(ctx, caller.user).await
}

fn wrong_code_error() -> Error {
    Error::Invalid("the code is wrong, or was used before: wait for the next one".into())
}

async fn replace_recovery_codes(ctx: &mut Ctx, user: UserId) -> Result<RecoveryCodes, Error> {
    let codes: Vec<String> =
        (0..RECOVERY_CODE_COUNT).map(|_| issue_recovery_code(ctx.environment())).collect();
    let hashes: Vec<[u8; 32]> = codes.iter().map(|code| hash_recovery_code(user, code)).collect();
    let now = ctx.now;
    second_factors::replace_recovery_codes(ctx.conn(), user, &hashes, now).await?;
    let told = EventDraft::new(EventKind::RecoveryCodesIssued, json!({ "user_id": user }));
    ctx.record_event(told.with_subject(user)).await?;
    Ok(RecoveryCodes { codes: codes.into_iter().map(SecretText).collect() })
}

/// Throttles the codes that a session shows, as logins are. A stolen session is no way to guess at them.
#[tracing::instrument(name = "app.second_factor.verify_own_code", skip_all)]
#[operation]
pub async fn verify_own_code(
    app: &App,
    request: &OperationRequest,
    code: &SecretText,
    source: ClientSource,
) -> Result<CodeProof, Error> {
    let caller = request.caller.ok_or(Error::Unauthenticated)?;
    let mut ctx = app.begin_transaction(request).await?;
    ctx.require_session("change their second factor")?;
    let user = accounts::get_user(ctx.conn(), caller.user).await?.ok_or(Error::Unauthenticated)?;
    let mut attempt = LoginAttempt::begin(app, &user.handle, source)?;
    match check_login_code(app, &mut ctx, user.id, Some(code)).await? {
        CodeCheck::Accepted => {
            ctx.commit().await?;
            attempt.record_success();
            Ok(CodeProof { user: user.id })
        }
        CodeCheck::NotEnrolled | CodeCheck::Missing => {
            Err(Error::Conflict("this account has no second factor"))
        }
        CodeCheck::Wrong => {
            drop(ctx);
            attempt.record_failure(request, Some(user.id)).await?;
            Err(wrong_code_error())
        }
    }
}

/// Proof that the caller has just shown a code of their second factor.
#[derive(Clone, Copy, Debug)]
pub struct CodeProof {
    user: UserId,
}

impl CodeProof {
    fn require_caller(self, ctx: &Ctx) -> Result<(), Error> {
        if ctx.caller()?.user == self.user { Ok(()) } else { Err(Error::Unauthenticated) }
    }
}

/// Notes that the caller has shown the second factor in this session. A session of an identity provider that asked for none, or one
/// from before the enrolment, begins without it.
#[tracing::instrument(name = "app.second_factor.verify_own_session", skip_all)]
#[operation]
pub async fn verify_own_session(
    ctx: &mut Ctx,
    proof: CodeProof,
) -> Result<SecondFactorView, Error> {
    let (caller, session) = ctx.require_session("show their second factor")?;
    proof.require_caller(ctx)?;
    accounts::mark_second_factor(ctx.conn(), session).await?;
    let told = EventDraft::new(EventKind::SecondFactorVerified, json!({ "session_id": session }));
    ctx.record_event(told.with_subject(caller.user)).await?;
    get_second_factor(ctx).await
}

/// Issues new recovery codes. Earlier ones stop working.
#[tracing::instrument(name = "app.second_factor.issue_recovery_codes", skip_all)]
#[operation]
pub async fn issue_recovery_codes(ctx: &mut Ctx, proof: CodeProof) -> Result<RecoveryCodes, Error> {
    let (caller, _) = ctx.require_session("get recovery codes")?;
    proof.require_caller(ctx)?;
    replace_recovery_codes(ctx, caller.user).await
}

/// Deletes the caller's second factor, with its recovery codes. Other sessions end.
#[tracing::instrument(name = "app.second_factor.delete_own_second_factor", skip_all)]
#[operation]
pub async fn delete_own_second_factor(
    ctx: &mut Ctx,
    password: &PasswordProof,
    proof: CodeProof,
) -> Result<(), Error> {
    let (caller, session) = ctx.require_session("delete their second factor")?;
    password.require_current(ctx).await?;
    proof.require_caller(ctx)?;
    sessions::end_user_sessions(ctx, caller.user, Some(session)).await?;
    if !delete_second_factor(ctx, caller.user).await? {
        return Err(Error::Conflict("this account has no second factor"));
    }
    Ok(())
}

/// Deletes the second factor of a user. Returns whether there was one.
pub(crate) async fn delete_second_factor(ctx: &mut Ctx, user: UserId) -> Result<bool, Error> {
    if !second_factors::delete_totp(ctx.conn(), user).await? {
        return Ok(false);
    }
    let told = EventDraft::new(EventKind::SecondFactorDeleted, json!({ "user_id": user }));
    ctx.record_event(told.with_subject(user)).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_recovery_code_is_the_same_however_it_is_typed_and_differs_between_users() {
        let (one, other) =
            (UserId::from_uuid(Uuid::from_u128(1)), UserId::from_uuid(Uuid::from_u128(2)));
        let code = issue_recovery_code(&AppEnvironment::from_system());
        assert_eq!(code.len(), 23, "{code}");
        let typed = code.replace('-', " ").to_uppercase();
        assert_eq!(hash_recovery_code(one, &code), hash_recovery_code(one, &typed));
        assert_ne!(hash_recovery_code(one, &code), hash_recovery_code(other, &code));
    }

    #[test]
    fn codes_are_those_of_rfc_6238() {
        // The secret and the times of appendix B, of which six digits are left.
        let secret = *b"12345678901234567890";
        for (seconds, code) in
            [(59, "287082"), (1_111_111_109, "081804"), (20_000_000_000, "353130")]
        {
            assert_eq!(build_totp(secret).unwrap().check(code, seconds), Some(seconds / 30));
        }
    }

    #[test]
    fn a_qr_code_is_one_svg_document() {
        let drawn = draw_qr_code("otpauth://totp/CyNode:ada?secret=AAAA").unwrap();
        assert!(drawn.starts_with("<?xml") && drawn.ends_with("</svg>"), "{drawn}");
    }
}

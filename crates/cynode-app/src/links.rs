//! Links that answer one question of one person, once.

use cynode_core::{
    ids::{ApprovalId, TaskId, UserId, WaitId},
    names::Prose,
    roles::Role,
};
use cynode_db::{DbError, accounts, authentication, notices};
use cynode_wire::{
    gate::DecideApproval,
    timeline::{AnswerQuestion, Approve},
};
use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{
    App, Caller, Ctx, Error, Request, approvals, inference,
    keys::Keys,
    notices::{Asked, Question, question},
    workflow::signals,
};

/// How long a link works at most.
pub(crate) const LIFETIME: Duration = Duration::hours(24);

/// The form that says yes.
pub const YES: &str = "decision=approve";

/// The form that says no.
pub const NO: &str = "decision=refuse";

/// The form of what is signed. A new form gets a new number.
const VERSION: u8 = 2;

/// The form before it, which does not say when it was made.
const UNDATED: u8 = 1;

/// Bytes of the tag, behind what is signed.
const TAG: usize = 32;

/// What a link says: who may answer which question until when, and when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) asked: Asked,
    pub(crate) user: UserId,
    pub(crate) expires_at: OffsetDateTime,
    pub(crate) made_at: OffsetDateTime,
}

impl Token {
    /// The token as it stands in an address.
    pub(crate) fn written(&self, keys: &Keys) -> String {
        let (kind, id) = match self.asked {
            Asked::Approval(id) => (1, id.as_uuid()),
            Asked::Plan(id) => (2, id.as_uuid()),
            Asked::Answer(id) => (3, id.as_uuid()),
        };
        let mut bytes = vec![VERSION, kind];
        bytes.extend_from_slice(id.as_bytes());
        bytes.extend_from_slice(self.user.as_uuid().as_bytes());
        bytes.extend_from_slice(&self.expires_at.unix_timestamp().to_be_bytes());
        bytes.extend_from_slice(&self.made_at.unix_timestamp().to_be_bytes());
        let tag = tag(keys, &bytes);
        bytes.extend_from_slice(&tag);
        BASE64URL_NOPAD.encode(&bytes)
    }

    /// What a token says, if it is ours to the last bit.
    fn read(text: &str, keys: &Keys) -> Option<Self> {
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let (signed, tag) = bytes.split_last_chunk::<TAG>()?;
        if !keys.tagged(&[LABEL, signed], tag) {
            return None;
        }
        let ([version, kind], rest) = signed.split_first_chunk::<2>()?;
        let (id, rest) = rest.split_first_chunk::<16>()?;
        let (user, rest) = rest.split_first_chunk::<16>()?;
        let id = Uuid::from_bytes(*id);
        let asked = match kind {
            1 => Asked::Approval(ApprovalId::from_uuid(id)),
            2 => Asked::Plan(WaitId::from_uuid(id)),
            3 => Asked::Answer(WaitId::from_uuid(id)),
            _ => return None,
        };
        let (expires, made) = rest.split_first_chunk::<8>()?;
        let expires_at = moment(*expires)?;
        let made_at = match *version {
            VERSION => moment(made.try_into().ok()?)?,
            // No link was made earlier than that.
            UNDATED if made.is_empty() => expires_at - LIFETIME,
            _ => return None,
        };
        let user = UserId::from_uuid(Uuid::from_bytes(*user));
        Some(Self { asked, user, expires_at, made_at })
    }
}

fn moment(seconds: [u8; 8]) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(i64::from_be_bytes(seconds)).ok()
}

/// What tags of links are told from other tags by.
const LABEL: &[u8] = b"answer-link/v1";

fn tag(keys: &Keys, signed: &[u8]) -> [u8; TAG] {
    keys.tag(&[LABEL, signed])
}

/// Why a link does not work.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// We did not make it.
    #[error("this link is not one of ours")]
    Forged,
    /// Its time is over.
    #[error("this is over: the time in which it could be answered has passed")]
    Expired,
    /// It was used.
    #[error("this link was used already")]
    Used,
    /// Somebody answered another way, or the question is not asked any more.
    #[error("this was answered already, or is not asked any more")]
    Answered,
    /// The person may not answer any more.
    #[error("you may not answer this any more")]
    NotYours,
    /// What was said is no answer.
    #[error("{0}")]
    NoAnswer(String),
    /// Our fault.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<DbError> for Refused {
    fn from(error: DbError) -> Self {
        Self::Failed(error.into())
    }
}

/// What a person said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Yes.
    Yes,
    /// No, and perhaps what should be different.
    No(Option<String>),
    /// An answer in words.
    Words(String),
}

/// A question, for the person that a link stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sheet {
    /// The question.
    pub question: Question,
    /// Who is asked.
    pub person: String,
    /// Until when the link works.
    pub expires_at: OffsetDateTime,
}

/// Who is behind a link, and what it stands for.
async fn known(app: &App, text: &str) -> Result<(Token, [u8; 32], Caller), Refused> {
    let keys = &app.gate()?.keys;
    let token = Token::read(text, keys).ok_or(Refused::Forged)?;
    let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    let mut conn = app.pool().acquire().await.map_err(DbError::from)?;
    if notices::is_used(&mut conn, &hash).await? {
        return Err(Refused::Used);
    }
    if token.expires_at <= app.environment().now() {
        return Err(Refused::Expired);
    }
    // Whoever read along before the password was changed is put out with everybody else. A token knows whole seconds.
    let changed = accounts::password_changed_at(&mut conn, token.user).await?;
    if changed.is_some_and(|at| at.unix_timestamp() > token.made_at.unix_timestamp()) {
        return Err(Refused::NotYours);
    }
    let caller = authentication::by_link(&mut conn, token.user).await?;
    Ok((token, hash, caller.ok_or(Refused::NotYours)?))
}

/// What a link asks. Looking changes nothing: programs that check mail look too.
#[tracing::instrument(name = "app.links.look", skip_all)]
pub async fn look(app: &App, text: &str) -> Result<Sheet, Refused> {
    let (token, _, caller) = known(app, text).await?;
    let request = Request { caller: Some(caller), trace: app.environment().trace(), attempt: None };
    let gate = app.gate()?.clone();
    let found = app.read(&request, |ctx| {
        Box::pin(async move {
            let now = ctx.now;
            let found = question::find(ctx.conn(), &gate.keys, token.asked, now).await?;
            let Some(question) = found else { return Ok(None) };
            match question.project {
                Some(project) => ctx.require_in(project, Role::Operator).await?,
                None => ctx.require(Role::Admin)?,
            };
            let person = question::name_of(ctx.conn(), token.user).await?;
            Ok(Some(Sheet { question, person, expires_at: token.expires_at }))
        })
    });
    match found.await {
        Ok(Some(sheet)) if sheet.question.open => Ok(sheet),
        Ok(_) => Err(Refused::Answered),
        Err(error) => Err(refused(error)),
    }
}

fn refused(error: Error) -> Refused {
    match error {
        Error::Forbidden { .. } | Error::NotFound { .. } => Refused::NotYours,
        Error::Conflict(_) | Error::Transition(_) | Error::Ended => Refused::Answered,
        Error::Invalid(why) => Refused::NoAnswer(why),
        error => Refused::Failed(error),
    }
}

/// Answers the question of a link, by the same operation as the API, as the person that it stands for. Of two at once, one wins.
#[tracing::instrument(name = "app.links.answer", skip_all)]
pub async fn answer(app: &App, text: &str, said: Said) -> Result<(), Refused> {
    let (token, hash, caller) = known(app, text).await?;
    let said = match said {
        Said::Words(text) => Said::Words(inference::redacted(app, text).await?),
        Said::No(Some(note)) => Said::No(Some(inference::redacted(app, note).await?)),
        said @ (Said::Yes | Said::No(None)) => said,
    };
    let request = Request { caller: Some(caller), trace: app.environment().trace(), attempt: None };
    let mut ctx = app.open(&request).await?;
    let (user, now) = (caller.user, ctx.now);
    if !notices::use_link(ctx.conn(), &hash, user, now, token.expires_at).await? {
        return Err(Refused::Used);
    }
    let done = match (token.asked, said) {
        (Asked::Approval(id), Said::Yes) => decided(&mut ctx, id, true).await,
        (Asked::Approval(id), Said::No(_)) => decided(&mut ctx, id, false).await,
        (Asked::Plan(id), Said::Yes) => judged(&mut ctx, id, true, None).await,
        (Asked::Plan(id), Said::No(note)) => judged(&mut ctx, id, false, note).await,
        (Asked::Answer(id), Said::Words(text)) => told(&mut ctx, id, &text).await,
        (Asked::Answer(_), Said::Yes | Said::No(_)) => {
            Err(Refused::NoAnswer("write your answer".into()))
        }
        (Asked::Approval(_) | Asked::Plan(_), Said::Words(_)) => {
            Err(Refused::NoAnswer("say yes or no".into()))
        }
    };
    // Dropped, everything is undone, and the link can be used again.
    done?;
    Ok(app.commit(ctx).await?)
}

async fn decided(ctx: &mut Ctx, id: ApprovalId, approved: bool) -> Result<(), Refused> {
    if cynode_db::approvals::get(ctx.conn(), id).await?.is_none() {
        return Err(Refused::Answered);
    }
    approvals::decide(ctx, id, DecideApproval { approved }).await.map(|_| ()).map_err(refused)
}

async fn judged(
    ctx: &mut Ctx,
    id: WaitId,
    approved: bool,
    note: Option<String>,
) -> Result<(), Refused> {
    let task = waiting(ctx, id).await?;
    let note = note.as_deref().map(prose).transpose()?;
    let body = Approve { approved, note, wait_id: Some(id) };
    let done = signals::approve(ctx, task, &body).await;
    done.map(|_| ()).map_err(refused)
}

async fn told(ctx: &mut Ctx, id: WaitId, text: &str) -> Result<(), Refused> {
    let task = waiting(ctx, id).await?;
    let body = AnswerQuestion { text: prose(text)?, wait_id: Some(id) };
    let done = signals::answer(ctx, task, &body).await;
    done.map(|_| ()).map_err(refused)
}

async fn waiting(ctx: &mut Ctx, id: WaitId) -> Result<TaskId, Refused> {
    let wait = cynode_db::waits::get(ctx.conn(), id).await?;
    Ok(wait.ok_or(Refused::Answered)?.task)
}

fn prose(text: &str) -> Result<Prose, Refused> {
    text.trim()
        .parse()
        .map_err(|error: cynode_core::names::TextError| Refused::NoAnswer(error.to_string()))
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn token() -> Token {
        Token {
            asked: Asked::Plan(WaitId::from_uuid(Uuid::from_u128(7))),
            user: UserId::from_uuid(Uuid::from_u128(9)),
            expires_at: datetime!(2026-11-16 12:00 UTC),
            made_at: datetime!(2026-11-15 13:00 UTC),
        }
    }

    #[test]
    fn a_token_says_what_it_was_made_with() {
        let keys = Keys::from_master(&[7; 32]);
        let text = token().written(&keys);
        assert_eq!(Token::read(&text, &keys), Some(token()));
        assert_eq!(Token::read(&text, &Keys::from_master(&[8; 32])), None);
    }

    #[test]
    fn a_token_of_the_form_before_is_read_as_one_made_as_early_as_it_can_be() {
        let keys = Keys::from_master(&[7; 32]);
        let text = token().written(&keys);
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).unwrap();
        let mut old = bytes[..bytes.len() - TAG - 8].to_vec();
        old[0] = UNDATED;
        let tag = tag(&keys, &old);
        old.extend_from_slice(&tag);
        let made_at = datetime!(2026-11-15 12:00 UTC);
        let old = Token::read(&BASE64URL_NOPAD.encode(&old), &keys);
        assert_eq!(old, Some(Token { made_at, ..token() }));
    }

    #[test]
    fn a_token_with_any_bit_changed_is_none_of_ours() {
        let keys = Keys::from_master(&[7; 32]);
        let text = token().written(&keys);
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Token::read(&BASE64URL_NOPAD.encode(&other), &keys), None, "bit {bit}");
        }
        // Nor is another spelling of the same bytes, nor more or less of them.
        for place in 0..text.len() {
            for letter in ['A', 'B', 'z', '0', '-', '_', '=', '%'] {
                let mut other = text.clone().into_bytes();
                if other[place] == letter as u8 {
                    continue;
                }
                other[place] = letter as u8;
                assert_eq!(Token::read(&String::from_utf8(other).unwrap(), &keys), None);
            }
        }
        for other in [String::new(), text[1..].to_owned(), format!("{text}A"), format!("{text}=")] {
            assert_eq!(Token::read(&other, &keys), None);
        }
    }
}

//! Rate limits of accounts: their requests at the user-facing port, and their changes that make every replica load its
//! policy or its models again. The counters live in the memory of this process only.

use std::num::NonZeroU32;

use cynode_core::ids::{ScimTokenId, UserId};
use governor::{
    Quota, RateLimiter, clock::Clock as _, clock::DefaultClock, state::keyed::DashMapStateStore,
};

use crate::{App, AuthenticatedCaller, Error};

/// Maximum number of accounts whose requests are tracked.
const MAX_TRACKED_ACCOUNTS: usize = 100_000;

/// How many codes of devices an account may look up in a minute. Guessing one takes longer than a code lives.
const DEVICE_CODES_PER_MINUTE: u32 = 10;

/// How many codes of second factors an account may show in an hour, and how many at once. A code has six digits and three
/// of them are right at any time: at this rate somebody with the password finds one in years. The delays of login throttling
/// alone would give them days.
const SECOND_FACTOR_CODES_PER_HOUR: u32 = 20;
const SECOND_FACTOR_CODE_BURST: u32 = 30;

/// Rate limits of one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountLimits {
    /// Requests per second at the user-facing port.
    pub requests_per_second: u32,
    /// Requests at once, after a pause.
    pub request_burst: u32,
    /// Changes per minute, and at once, that make every replica load its policy or its models again. Admins of the
    /// installation have no such limit.
    pub policy_changes_per_minute: u32,
}

impl AccountLimits {
    /// The limits where nobody configured others.
    pub const DEFAULT: Self =
        Self { requests_per_second: 50, request_burst: 200, policy_changes_per_minute: 20 };
}

impl Default for AccountLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

type KeyedLimiter = RateLimiter<UserId, DashMapStateStore<UserId>, DefaultClock>;

/// Counts the requests and the changes of accounts.
pub(crate) struct AccountLimiter {
    clock: DefaultClock,
    requests: KeyedLimiter,
    changes: KeyedLimiter,
    device_codes: KeyedLimiter,
    second_factor_codes: KeyedLimiter,
}

impl AccountLimiter {
    pub(crate) fn new(limits: AccountLimits) -> Self {
        let requests = Quota::per_second(to_non_zero(limits.requests_per_second))
            .allow_burst(to_non_zero(limits.request_burst));
        let changes = Quota::per_minute(to_non_zero(limits.policy_changes_per_minute));
        Self {
            clock: DefaultClock::default(),
            requests: RateLimiter::dashmap(requests),
            changes: RateLimiter::dashmap(changes),
            device_codes: RateLimiter::dashmap(Quota::per_minute(to_non_zero(
                DEVICE_CODES_PER_MINUTE,
            ))),
            second_factor_codes: RateLimiter::dashmap(
                Quota::per_hour(to_non_zero(SECOND_FACTOR_CODES_PER_HOUR))
                    .allow_burst(to_non_zero(SECOND_FACTOR_CODE_BURST)),
            ),
        }
    }

    /// Counts a change that makes every replica load again. Rejects an account that makes too many.
    pub(crate) fn count_change(&self, user: UserId) -> Result<(), Error> {
        self.count_in(
            &self.changes,
            user,
            "this account changes tools, models or channels too often: every change makes all replicas load them again (`server.policy_changes_per_minute`)",
        )
    }

    /// Counts the look-up of a device's code. Rejects an account that tries too many.
    pub(crate) fn count_device_code(&self, user: UserId) -> Result<(), Error> {
        let what = "this account looks up codes of devices too often";
        self.count_in(&self.device_codes, user, what)
    }

    /// Counts a code of a second factor, right or wrong. Rejects an account that shows too many.
    fn count_second_factor_code(&self, user: UserId) -> Result<(), Error> {
        let what = "too many codes of the second factor of this account";
        self.count_in(&self.second_factor_codes, user, what)
    }

    fn count_in(
        &self,
        limiter: &KeyedLimiter,
        user: UserId,
        what: &'static str,
    ) -> Result<(), Error> {
        if limiter.len() > MAX_TRACKED_ACCOUNTS {
            limiter.retain_recent();
        }
        limiter.check_key(&user).map_err(|until| Error::RateLimited {
            what,
            after: until.wait_time_from(self.clock.now()),
        })
    }
}

fn to_non_zero(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN)
}

impl App {
    /// Counts a request of an account. Rejects an account that sends too many. A stream and a model call count once.
    pub fn count_request(&self, caller: &AuthenticatedCaller) -> Result<(), Error> {
        let what = "this account sends more requests than `server.requests_per_second` allows";
        self.limits.count_in(&self.limits.requests, caller.user, what)
    }

    /// Counts a code of a second factor, right or wrong. Rejects an account that shows too many.
    pub(crate) fn count_second_factor_code(&self, user: UserId) -> Result<(), Error> {
        self.limits.count_second_factor_code(user)
    }

    /// Counts a request of a directory. Its token has the limit of an account.
    pub(crate) fn count_directory_request(&self, token: ScimTokenId) -> Result<(), Error> {
        let what = "this directory sends more requests than `server.requests_per_second` allows";
        // No token has the id of an account.
        let key = UserId::from_uuid(token.as_uuid());
        self.limits.count_in(&self.limits.requests, key, what)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn an_account_that_reaches_its_limit_is_told_when_to_come_back_and_others_go_on() {
        let limiter = AccountLimiter::new(AccountLimits {
            policy_changes_per_minute: 3,
            ..AccountLimits::default()
        });
        let (one, other) =
            (UserId::from_uuid(Uuid::from_u128(1)), UserId::from_uuid(Uuid::from_u128(2)));
        let granted = (0..100).filter(|_| limiter.count_change(one).is_ok()).count();
        assert_eq!(granted, 3);
        let Err(Error::RateLimited { after, .. }) = limiter.count_change(one) else {
            panic!("the limit is reached")
        };
        assert!(!after.is_zero() && after.as_secs() <= 20, "{after:?}");
        assert!(limiter.count_change(other).is_ok());
    }
}

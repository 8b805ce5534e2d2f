//! Cooldowns of provider keys per tenant. A provider answers 429 to a request that asks for too much, so one tenant can
//! provoke it at will: the key then rests for that tenant only. It rests for everybody when several tenants see it.

use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
};

use cynode_core::{
    ids::{ProjectId, ProviderKeyId, UserId},
    sync::lock_unpoisoned,
};
use time::OffsetDateTime;

use super::InferenceCaller;

/// Number of tenants, of at least two users, whose rate limits at the same time are one of the key itself.
const MIN_LIMITED_TENANTS: usize = 3;

/// Whose requests a provider limits together: those of a project, or of a user outside of any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum KeyTenant {
    Project(ProjectId),
    User(UserId),
}

impl KeyTenant {
    /// Returns the tenant of a user who calls a model for a project or for nobody else.
    pub(super) fn of_user(user: UserId, project: Option<ProjectId>) -> Self {
        project.map_or(Self::User(user), Self::Project)
    }

    /// Returns the tenant of a caller.
    pub(super) fn of_caller(who: &InferenceCaller) -> Self {
        Self::of_user(who.user, who.project)
    }
}

#[derive(Clone, Copy, Debug)]
struct TenantPark {
    until: OffsetDateTime,
    user: UserId,
}

/// Cooldowns of keys per tenant, in the memory of this process.
#[derive(Default)]
pub(super) struct TenantKeyParks(Mutex<HashMap<(ProviderKeyId, KeyTenant), TenantPark>>);

impl TenantKeyParks {
    /// Begins the cooldown of a key for a caller's tenant. Returns whether so many tenants see it that it is one of the key
    /// itself.
    pub(super) fn park_key(
        &self,
        key: ProviderKeyId,
        who: &InferenceCaller,
        until: OffsetDateTime,
        now: OffsetDateTime,
    ) -> bool {
        let mut parks = lock_unpoisoned(&self.0);
        parks.retain(|_, park| park.until > now);
        parks.insert((key, KeyTenant::of_caller(who)), TenantPark { until, user: who.user });
        let limited = || parks.iter().filter(|((parked, _), _)| *parked == key);
        let users: HashSet<UserId> = limited().map(|(_, park)| park.user).collect();
        limited().count() >= MIN_LIMITED_TENANTS && users.len() > 1
    }

    /// Returns the end of a key's cooldown for a tenant.
    pub(super) fn parked_until(
        &self,
        key: ProviderKeyId,
        tenant: KeyTenant,
        now: OffsetDateTime,
    ) -> Option<OffsetDateTime> {
        let parks = lock_unpoisoned(&self.0);
        parks.get(&(key, tenant)).map(|park| park.until).filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use time::{Duration, macros::datetime};
    use uuid::Uuid;

    use super::*;

    const NOON: OffsetDateTime = datetime!(2026-11-16 12:00 UTC);
    const KEY: ProviderKeyId = ProviderKeyId::from_uuid(Uuid::from_u128(1));

    fn caller(user: u128, project: Option<u128>) -> InferenceCaller {
        InferenceCaller {
            can_chat: true,
            user: UserId::from_uuid(Uuid::from_u128(user)),
            project: project.map(|id| ProjectId::from_uuid(Uuid::from_u128(id))),
            agent: None,
            role_everywhere: None,
            credential: "api_key",
        }
    }

    #[test]
    fn a_tenant_that_provokes_its_rate_limit_parks_the_key_for_itself_only() {
        let parks = TenantKeyParks::default();
        let (attacker, innocent) = (caller(1, Some(10)), caller(2, Some(20)));
        let until = NOON + Duration::seconds(10);
        for _ in 0..100 {
            assert!(!parks.park_key(KEY, &attacker, until, NOON));
        }
        let parked = |who, now| parks.parked_until(KEY, KeyTenant::of_caller(who), now);
        assert_eq!(parked(&attacker, NOON), Some(until));
        assert_eq!(parked(&innocent, NOON), None);
        assert_eq!(parked(&attacker, until), None);
    }

    #[test]
    fn several_tenants_park_it_for_everybody_unless_they_are_one_user() {
        let parks = TenantKeyParks::default();
        let until = NOON + Duration::seconds(10);
        for project in [None, Some(10), Some(11), Some(12)] {
            assert!(!parks.park_key(KEY, &caller(1, project), until, NOON));
        }
        assert!(parks.park_key(KEY, &caller(2, Some(20)), until, NOON));
        assert!(!parks.park_key(KEY, &caller(2, Some(20)), until, until), "the others are over");
    }
}

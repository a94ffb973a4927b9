//! How many send job slots of a process slow accounts may use. Their send jobs mostly wait, and slots must stay free for other accounts.

use std::{collections::HashMap, time::Instant};

use postrider_model::ids::TenantId;
use postrider_store::campaigns::outbox::JobHold;

use crate::campaigns::CampaignSettings;

/// Most send jobs of a process for one account that is slow.
pub(in crate::campaigns) const JOBS_OF_A_SLOW_ACCOUNT_MAX: usize = 2;

/// Most send jobs of all slow accounts together: half of the slots of the process and of each tenant.
#[derive(Debug, Clone, Copy)]
pub(in crate::campaigns) struct Bounds {
    process: usize,
    tenant: usize,
}

/// A send job that uses a slow account.
#[derive(Debug, Clone, Copy)]
pub(in crate::campaigns) struct Slot {
    pub(in crate::campaigns) tenant: TenantId,
    /// The send job; `None` for a send job that might be claimed.
    pub(in crate::campaigns) hold: Option<JobHold>,
    /// How many send jobs of the account were claimed before it.
    pub(in crate::campaigns) rank: usize,
    /// It has held the slot so long that send jobs of other accounts come first.
    pub(in crate::campaigns) has_had_its_share: bool,
    pub(in crate::campaigns) since: Instant,
}

impl Bounds {
    pub(in crate::campaigns) fn of(settings: &CampaignSettings) -> Self {
        Self { process: (settings.jobs_max / 2).max(1), tenant: (settings.jobs_per_tenant_max / 2).max(1) }
    }

    /// The send jobs that keep their slots. Every account gets its first slot before any gets a second one.
    pub(in crate::campaigns) fn kept(self, mut slots: Vec<Slot>) -> Vec<Option<JobHold>> {
        slots.sort_by_key(|slot| (slot.rank, slot.has_had_its_share, slot.since));
        let mut of_tenant: HashMap<TenantId, usize> = HashMap::new();
        let mut kept = Vec::new();
        for slot in slots.iter().filter(|slot| slot.rank < JOBS_OF_A_SLOW_ACCOUNT_MAX) {
            let of_tenant = of_tenant.entry(slot.tenant).or_default();
            if kept.len() < self.process && *of_tenant < self.tenant {
                *of_tenant += 1;
                kept.push(slot.hold);
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postrider_model::{Channel, ids::JobId};
    use uuid::Uuid;

    use super::*;

    /// A tenant, a rank, and whether the send job has had its share.
    type Job = (u128, usize, bool);
    /// A name, the bounds, the send jobs, and which of them are kept.
    type Case<'a> = (&'a str, (usize, usize), &'a [Job], &'a [usize]);

    /// Which of these send jobs are kept. They are in the order of their claims.
    fn kept(bounds: (usize, usize), jobs: &[Job]) -> Vec<usize> {
        let begun = Instant::now();
        let slot = |(number, (tenant, rank, has_had_its_share)): (usize, &Job)| {
            let tenant = TenantId(Uuid::from_u128(*tenant));
            let job_id = JobId(Uuid::from_u128(number as u128));
            Slot {
                tenant,
                hold: Some(JobHold { job_id, tenant_id: tenant, attempt: 1, channel: Channel::Email }),
                rank: *rank,
                has_had_its_share: *has_had_its_share,
                since: begun + Duration::from_secs(number as u64),
            }
        };
        let bounds = Bounds { process: bounds.0, tenant: bounds.1 };
        let kept = bounds.kept(jobs.iter().enumerate().map(slot).collect());
        let mut kept: Vec<_> =
            kept.into_iter().flatten().map(|hold| hold.job_id.0.as_u128() as usize).collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn slow_accounts_share_some_slots_and_each_gets_one_before_any_gets_two() {
        let (new, old) = (false, true);
        #[rustfmt::skip]
        let table: [Case<'_>; 6] = [
            ("two of an account",     (8, 8), &[(1, 0, new), (1, 1, new), (1, 2, new)], &[0, 1]),
            ("first come",        (2, 2), &[(1, 0, new), (1, 0, new), (1, 0, new)], &[0, 1]),
            ("firsts before seconds", (2, 2), &[(1, 0, new), (1, 1, new), (1, 0, new)], &[0, 2]),
            ("a tenant has a share",  (3, 2), &[(1, 0, new), (1, 0, new), (1, 0, new), (2, 0, new)], &[0, 1, 3]),
            ("all take turns",        (2, 2), &[(1, 0, old), (1, 0, new), (1, 0, new)], &[1, 2]),
            ("no other send job",  (2, 2), &[(1, 0, old), (1, 0, old)], &[0, 1]),
        ];
        for (case, bounds, jobs, expected) in table {
            assert_eq!(kept(bounds, jobs), expected, "{case}");
        }
    }

    #[test]
    fn slow_accounts_have_half_of_the_slots_and_one_at_least() {
        for (jobs_max, jobs_per_tenant_max, expected) in [(16, 12, (8, 6)), (5, 3, (2, 1)), (1, 1, (1, 1))] {
            let settings = CampaignSettings { jobs_max, jobs_per_tenant_max, ..CampaignSettings::default() };
            let Bounds { process, tenant } = Bounds::of(&settings);
            assert_eq!((process, tenant), expected);
        }
    }
}

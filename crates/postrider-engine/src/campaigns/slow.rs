//! How many places the jobs of slow accounts may hold. They mostly wait, and there must be room for accounts that do not.

use std::{collections::HashMap, time::Instant};

use postrider_model::ids::TenantId;
use postrider_store::outbox::JobHold;

use super::CampaignSettings;

/// Most jobs of a process for one account whose rate they only wait for.
pub(super) const SLOTS_OF_A_SLOW_ACCOUNT: usize = 2;

/// Most jobs of all slow accounts together: half of what there is, so that they never hold up the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    process: usize,
    tenant: usize,
}

/// A job that uses a slow account.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Whose.
    pub(super) tenant: TenantId,
    /// The job; `None` is one that might come.
    pub(super) hold: Option<JobHold>,
    /// How many jobs of the account were there before.
    pub(super) rank: usize,
    /// It was there so long that others come first.
    pub(super) has_had_its_time: bool,
    /// Since when.
    pub(super) since: Instant,
}

impl Bounds {
    pub(super) fn of(settings: &CampaignSettings) -> Self {
        Self { process: (settings.jobs_max / 2).max(1), tenant: (settings.jobs_per_tenant_max / 2).max(1) }
    }

    /// The jobs that may stay. Every account gets its first place before any gets a second one.
    pub(super) fn kept(self, mut places: Vec<Place>) -> Vec<Option<JobHold>> {
        places.sort_by_key(|place| (place.rank, place.has_had_its_time, place.since));
        let mut of_tenant: HashMap<TenantId, usize> = HashMap::new();
        let mut kept = Vec::new();
        for place in places.iter().filter(|place| place.rank < SLOTS_OF_A_SLOW_ACCOUNT) {
            let of_tenant = of_tenant.entry(place.tenant).or_default();
            if kept.len() < self.process && *of_tenant < self.tenant {
                *of_tenant += 1;
                kept.push(place.hold);
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

    /// A tenant, a rank, and whether the job has had its time.
    type Job = (u128, usize, bool);
    /// A name, the bounds, the jobs, and which of them are kept.
    type Case<'a> = (&'a str, (usize, usize), &'a [Job], &'a [usize]);

    /// Which of these jobs are kept. They stand in the order in which they came.
    fn kept(bounds: (usize, usize), jobs: &[Job]) -> Vec<usize> {
        let begun = Instant::now();
        let place = |(number, (tenant, rank, has_had_its_time)): (usize, &Job)| {
            let tenant = TenantId(Uuid::from_u128(*tenant));
            let job_id = JobId(Uuid::from_u128(number as u128));
            Place {
                tenant,
                hold: Some(JobHold { job_id, tenant_id: tenant, attempt: 1, channel: Channel::Email }),
                rank: *rank,
                has_had_its_time: *has_had_its_time,
                since: begun + Duration::from_secs(number as u64),
            }
        };
        let bounds = Bounds { process: bounds.0, tenant: bounds.1 };
        let kept = bounds.kept(jobs.iter().enumerate().map(place).collect());
        let mut kept: Vec<_> =
            kept.into_iter().flatten().map(|hold| hold.job_id.0.as_u128() as usize).collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn slow_accounts_share_a_part_of_the_places_and_each_gets_one_before_any_gets_two() {
        let (new, old) = (false, true);
        #[rustfmt::skip]
        let table: [Case<'_>; 6] = [
            ("two of an account",     (8, 8), &[(1, 0, new), (1, 1, new), (1, 2, new)], &[0, 1]),
            ("who came first",        (2, 2), &[(1, 0, new), (1, 0, new), (1, 0, new)], &[0, 1]),
            ("firsts before seconds", (2, 2), &[(1, 0, new), (1, 1, new), (1, 0, new)], &[0, 2]),
            ("a tenant has a share",  (3, 2), &[(1, 0, new), (1, 0, new), (1, 0, new), (2, 0, new)], &[0, 1, 3]),
            ("all take turns",        (2, 2), &[(1, 0, old), (1, 0, new), (1, 0, new)], &[1, 2]),
            ("nobody else is there",  (2, 2), &[(1, 0, old), (1, 0, old)], &[0, 1]),
        ];
        for (case, bounds, jobs, expected) in table {
            assert_eq!(kept(bounds, jobs), expected, "{case}");
        }
    }

    #[test]
    fn slow_accounts_have_half_of_the_places_and_one_at_least() {
        for (jobs_max, jobs_per_tenant_max, expected) in [(16, 12, (8, 6)), (5, 3, (2, 1)), (1, 1, (1, 1))] {
            let settings = CampaignSettings { jobs_max, jobs_per_tenant_max, ..CampaignSettings::default() };
            let Bounds { process, tenant } = Bounds::of(&settings);
            assert_eq!((process, tenant), expected);
        }
    }
}

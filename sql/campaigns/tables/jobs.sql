-- Send jobs (batches of a run's items), and the order in which workers serve the tenants.

create table execution.job_queue (
    id           uuid        not null,
    tenant_id    uuid        not null,
    workspace_id uuid        not null,
    run_id       uuid        not null,
    position     integer     not null,
    job_type     text        not null,
    status       text        not null default 'queued',
    outcome      text,
    attempts     integer     not null default 0,
    max_attempts integer     not null default 5,
    run_after    timestamptz not null default now(),
    locked_by    text,
    locked_at    timestamptz,
    last_error   text,
    item_ids     uuid[]      not null,
    -- Counters of the items, written when the send job ends.
    succeeded    integer,
    failed       integer,
    skipped      integer,
    created_at   timestamptz not null default now(),
    finished_at  timestamptz,
    -- Reason why a queued send job is not due yet, if the limits of an account are the reason. A claim clears it.
    waits_for    text,
    -- Versions of the account and the failover account that the current attempt uses.
    account_version  integer,
    failover_version integer,
    primary key (tenant_id, id),
    constraint job_queue_belongs_to_a_run
        foreign key (tenant_id, run_id) references execution.campaign_runs (tenant_id, id),
    constraint job_queue_type_check check (job_type in ('email_send_batch', 'voice_call_batch', 'social_post_batch')),
    constraint job_queue_status_check check (status in ('queued', 'locked', 'completed', 'failed', 'dead')),
    constraint job_queue_outcome_check check (outcome in ('completed', 'partial', 'failed')),
    constraint job_queue_ends_with_an_outcome check ((status in ('completed', 'dead')) = (outcome is not null)),
    constraint job_queue_attempts_are_bounded check (attempts >= 0 and max_attempts >= 1),
    constraint job_queue_lock_has_a_holder
        check ((status = 'locked') = (locked_by is not null) and (locked_by is null) = (locked_at is null)),
    constraint job_queue_has_items check (cardinality(item_ids) between 1 and 10000),
    constraint job_queue_waits_for_check
        check (waits_for in ('rate', 'daily', 'hours', 'retry_after', 'circuit'))
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
comment on table execution.job_queue is
    'Send jobs: a send job is a batch of a run''s items, and one worker holds it at a time. item_ids are the items that the '
    'send job must bring to an end, so that a missing item is found. Send jobs are deleted only with their archived run.';

-- For claims: the queued send jobs of a tenant, in the order in which they became due.
create index job_queue_waiting on execution.job_queue (tenant_id, run_after, id) where status = 'queued';
-- For the choice of tenants with expired locks and retries that are due, and then for the retries of one tenant. The first
-- also finds the locks of one tenant: it has few entries, and those of other tenants are passed over in the index.
create index job_queue_locked on execution.job_queue (locked_at, tenant_id) where status = 'locked';
create index job_queue_retries on execution.job_queue (run_after) where status = 'failed';
create index job_queue_retries_of_tenant on execution.job_queue (tenant_id, run_after) where status = 'failed';
-- These two do not begin with the tenant: among indexes of equal cost, as on an empty table, the planner takes the newest,
-- and a lookup of a send job by its tenant and id must use the primary key.
create index job_queue_by_run on execution.job_queue (run_id, tenant_id, position);
-- For the end of a run: its unfinished send jobs, in the order in which they are claimed.
create index job_queue_left on execution.job_queue (run_id, tenant_id, run_after, id)
    where status in ('queued', 'locked', 'failed');

create table execution.claim_order (
    tenant_id     uuid        not null references tenancy.tenants (id),
    last_claim_at timestamptz not null default '-infinity',
    primary key (tenant_id)
) with (fillfactor = 50);
comment on table execution.claim_order is
    'The time at which a worker last claimed send jobs of each tenant: claims serve the tenant that waited longest first. '
    'It affects fairness and never correctness.';

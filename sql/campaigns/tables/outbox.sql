-- The outbox: one row per item and idempotency key, and the doubts and provider callbacks about items.

-- Half of each page stays free and no index contains a column that a settlement changes, so that settling rewrites the
-- row in place (HOT). Items in doubt are found by `in_doubt_since`, which an item that goes well never has.
--
-- `run_id` and `job_id` have no foreign keys: begin_windows takes them from a send job that it has locked, and send jobs of a run
-- are deleted only after the run is archived, when no send job of it can be locked.
create table execution.channel_outbox (
    id                  uuid        not null default gen_random_uuid(),
    tenant_id           uuid        not null,
    workspace_id        uuid        not null,
    run_id              uuid        not null,
    job_id              uuid        not null,
    channel             text        not null,
    provider            text        not null,
    recipient_id        uuid,
    recipient           text,
    idempotency_key     text        not null,
    status              text        not null default 'queued',
    skipped             boolean     not null default false,
    provider_message_id text,
    error               text,
    reserved_by         text,
    attempt             integer,
    message_hash        bytea,
    -- The variables that the template used for this recipient; null if no message was rendered. With the version of the asset
    -- they make the message again.
    payload             jsonb,
    -- Beginning of the provider's last response: its status and its words, without headers.
    result              jsonb,
    created_at          timestamptz not null default now(),
    finalized_at        timestamptz,
    in_doubt_since      timestamptz,
    -- The failover account, if the item was moved to it because the run's own account provably did not send it.
    moved_to_account_id uuid,
    primary key (tenant_id, id),
    constraint channel_outbox_status_check
        check (status in ('queued', 'sent', 'called', 'posted', 'failed', 'skipped')),
    constraint channel_outbox_skipped_status_check check (skipped = false or status = 'skipped'),
    constraint channel_outbox_only_queued_is_in_doubt check (in_doubt_since is null or status = 'queued'),
    constraint channel_outbox_one_row_per_key unique (idempotency_key, tenant_id, workspace_id)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
comment on table execution.channel_outbox is
    'One row per item and idempotency key: the reservation of one provider call, then its result. The unique key '
    'prevents a second call. A row is deleted only with its archived run, after the jobs that could reserve its key.';

-- No index but the primary key begins with the tenant: a lookup of an item by its tenant and id must use the primary key,
-- even if the planner takes the tenant for one with a single item.
create index idx_channel_outbox_run_id on execution.channel_outbox (run_id);
create index channel_outbox_by_job on execution.channel_outbox (job_id, tenant_id);
create index channel_outbox_in_doubt on execution.channel_outbox (in_doubt_since) where in_doubt_since is not null;

create table execution.doubts (
    outbox_id      uuid        not null,
    tenant_id      uuid        not null references tenancy.tenants (id),
    account_id     uuid        not null,
    provider       text        not null,
    looks          integer     not null default 0,
    next_look_at   timestamptz not null default now(),
    held_by        text,
    held_until     timestamptz,
    repeated_at    timestamptz,
    is_for_person  boolean     not null default false,
    note           text,
    -- Copies for the overview, which counts doubts and does not read their items.
    campaign_id    uuid,
    in_doubt_since timestamptz not null,
    primary key (tenant_id, outbox_id)
) with (fillfactor = 70);
alter table execution.doubts alter column tenant_id set statistics 0; -- as for leads
comment on table execution.doubts is
    'One row per item in doubt, for as long as it is in doubt: the resolver that holds it, the time of the next look, '
    'and the findings so far. looks counts the claims and is the fencing token of a claim.';

create index doubts_due on execution.doubts (provider, next_look_at) where not is_for_person;
create index doubts_due_of_tenant on execution.doubts (tenant_id, next_look_at) where not is_for_person;

create table execution.provider_callbacks (
    tenant_id       uuid        not null references tenancy.tenants (id),
    account_id      uuid        not null,
    idempotency_key text        not null,
    message_id      text        not null,
    status          text        not null,
    proves_action   boolean     not null,
    received_at     timestamptz not null default now(),
    primary key (tenant_id, account_id, idempotency_key, message_id, status),
    constraint provider_callbacks_are_short
        check (octet_length(idempotency_key) <= 64 and octet_length(message_id) <= 500 and octet_length(status) <= 64)
);
comment on table execution.provider_callbacks is
    'Status callbacks of providers about their calls, each stored once. The rows are evidence and never change; they are '
    'deleted with their archived run, or when the person of the item is erased.';

-- The raw side: send jobs and items without triggers. Same columns, storage and check constraints, and the same indexes without the
-- tenant, which the raw keys do not need.
create table raw.job_queue (
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
    succeeded    integer,
    failed       integer,
    skipped      integer,
    created_at   timestamptz not null default now(),
    finished_at  timestamptz,
    primary key (id),
    unique (tenant_id, id)
) with (fillfactor = 70);
create index job_queue_waiting on raw.job_queue (tenant_id, run_after, id) where status = 'queued';
create index job_queue_locked on raw.job_queue (locked_at) where status = 'locked';
create index job_queue_retries on raw.job_queue (run_after) where status = 'failed';
create index job_queue_left on raw.job_queue (run_id, run_after, id) where status in ('queued', 'locked', 'failed');
create index job_queue_by_run on raw.job_queue (tenant_id, run_id, position);

create table raw.channel_outbox (
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
    created_at          timestamptz not null default now(),
    finalized_at        timestamptz,
    in_doubt_since      timestamptz,
    moved_to_account_id uuid,
    primary key (id),
    unique (tenant_id, workspace_id, idempotency_key),
    check (in_doubt_since is null or status = 'queued'),
    check (skipped = false or status = 'skipped'),
    check (status in ('queued', 'sent', 'called', 'posted', 'failed', 'skipped'))
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
create index channel_outbox_by_run on raw.channel_outbox (run_id);
create index channel_outbox_by_job on raw.channel_outbox (job_id);
create index channel_outbox_in_doubt on raw.channel_outbox (in_doubt_since) where in_doubt_since is not null;

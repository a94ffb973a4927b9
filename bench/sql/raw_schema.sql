-- The raw side: the outbox without triggers. Same columns, storage and indexes.
create schema raw;
create table raw.outbox (
    id             bigint      generated always as identity,
    aggregate_type text        not null,
    aggregate_id   text        not null,
    event_type     text        not null,
    payload        jsonb       not null,
    created_at     timestamptz not null default now(),
    processed_at   timestamptz,
    retry_count    integer     not null default 0,
    process_after  timestamptz,
    claimed_at     timestamptz,
    claimed_by     text,
    last_error     text,
    tenant_id      uuid,
    primary key (id)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
create index outbox_ready_to_claim
    on raw.outbox ((coalesce(process_after, '-infinity'::timestamptz)), id)
    where processed_at is null;
create index outbox_failed_before
    on raw.outbox (retry_count, id)
    where processed_at is null and retry_count > 0;
create index outbox_by_tenant
    on raw.outbox (tenant_id, id)
    where tenant_id is not null;

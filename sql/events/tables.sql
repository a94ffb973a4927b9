-- Tables of domain events: the outbox of the M10 contract, partial deliveries, and the registered sinks.
-- Row-level security, triggers and grants of these tables are in functions/guards.sql.

-- `process_after` alone decides when an event may be claimed; no second column could disagree with it. `last_error` and
-- `tenant_id` are not columns of the contract. `tenant_id` is the tenant of the publisher, or the system tenant: it decides
-- which tenant sees the row, never whether the event is delivered. Triggers stand in for its foreign key: the key would
-- lock the row of the system tenant for every event.
--
-- Half of each page stays free, so that a claim updates the row in place (HOT): no index contains a column that a claim
-- changes.
create table m10_recovery.outbox (
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
    tenant_id      uuid        not null default '00000000-0000-0000-0000-000000000001'
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
-- For claims: unprocessed events in the order in which they became ready. The tenant is in this index and the next one for
-- the overview: it counts the events of one tenant and passes over those of others in the index.
create index outbox_ready_to_claim
    on m10_recovery.outbox ((coalesce(process_after, '-infinity'::timestamptz)), id, tenant_id)
    where processed_at is null;
-- For the list of stuck events; events that never failed are not in it.
create index outbox_failed_before
    on m10_recovery.outbox (retry_count, id, tenant_id)
    where processed_at is null and retry_count > 0;
-- Among indexes of equal cost the planner takes the newest, and keeps that plan in a session that began while the table was
-- empty. So the two indexes by id are made after those above, the one that begins with the tenant last.
alter table m10_recovery.outbox add primary key (id);
-- For the list of a tenant's events, and for outbox_deliveries.
alter table m10_recovery.outbox add constraint outbox_one_row_per_tenant_and_id unique (tenant_id, id);
-- As for channels.channel_messages: with statistics, a tenant that is missing in the last sample counts as empty, and
-- prune_outbox read all its events to delete those with some ids.
alter table m10_recovery.outbox alter column tenant_id set statistics 0;
comment on table m10_recovery.outbox is
    'Published domain events. An event is pending, claimed (for five minutes, by `claimed_by`) or processed. A '
    'processed event never changes, and an event that is not processed cannot be removed.';

create table events.outbox_deliveries (
    tenant_id    uuid        not null,
    event_id     bigint      not null,
    sink         text        not null,
    delivered_at timestamptz not null default now(),
    primary key (tenant_id, event_id, sink),
    constraint outbox_deliveries_belong_to_an_event
        foreign key (tenant_id, event_id) references m10_recovery.outbox (tenant_id, id) on delete cascade
);
comment on table events.outbox_deliveries is
    'Sinks that already have an event, written only when another sink of the same event failed, so that the retry '
    'skips them. Losing a row costs a repeated delivery, nothing more.';

create table events.sink_sets (
    generation    bigint      not null,
    sinks         jsonb       not null,
    registered_at timestamptz not null default now(),
    registered_by text        not null,
    primary key (generation),
    constraint sink_sets_hold_sinks check (jsonb_typeof(sinks) = 'array' and sinks <> '[]')
);
comment on table events.sink_sets is
    'Sets of sinks that relays deliver to; the one with the highest generation is registered. A sink has a name, a '
    'kind, a target that identifies its destination without its secrets, and the patterns of the events that it '
    'receives.';

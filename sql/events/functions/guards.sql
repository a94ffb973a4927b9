-- Row-level security, triggers that refuse changes, and grants of the event tables.

-- A table that has its policies keeps them.
select tenancy.protect(wanted.name)
  from (values ('m10_recovery.outbox'::regclass), ('events.outbox_deliveries')) as wanted (name)
 where not exists (select from pg_catalog.pg_policy where polrelid = wanted.name);

-- Triggers stand in for CHECK constraints on the outbox. Postgres prepares every CHECK of a table anew for every
-- statement, and a consumer completes events one statement each; a trigger is prepared only when its columns are set.
create or replace trigger outbox_events_begin_well
    before insert on m10_recovery.outbox
    for each row
    when (new.aggregate_type = '' or new.aggregate_id = '' or new.event_type = ''
          or new.retry_count < 0
          or (new.claimed_at is null) <> (new.claimed_by is null))
    execute function tenancy.refuse_change('an event has its three names, counts from zero, and a claim has a holder');
create or replace function events.require_tenant_of_event()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform from tenancy.tenants as tenant where tenant.id = new.tenant_id for key share;
    if not found then
        raise exception 'there is no tenant %', new.tenant_id
            using errcode = 'foreign_key_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
    end if;
    return new;
end
$$;
revoke all on function events.require_tenant_of_event() from public;
comment on function events.require_tenant_of_event() is
    'Trigger function: refuses an event of a tenant that does not exist. The tenant cannot be removed before the '
    'transaction ends; tenancy.refuse_removal_with_events protects it afterwards.';
create or replace trigger outbox_events_belong_to_a_tenant
    before insert on m10_recovery.outbox
    for each row
    when (new.tenant_id <> '00000000-0000-0000-0000-000000000001')
    execute function events.require_tenant_of_event();
create or replace trigger outbox_retries_count_from_zero
    before update of retry_count on m10_recovery.outbox
    for each row
    when (new.retry_count < 0)
    execute function tenancy.refuse_change('retry_count counts failures and is never negative');
create or replace trigger outbox_claim_has_a_holder
    before update of claimed_at, claimed_by on m10_recovery.outbox
    for each row
    when ((new.claimed_at is null) <> (new.claimed_by is null))
    execute function tenancy.refuse_change('a claim has a time and a holder, or neither');
create or replace trigger outbox_processed_is_final
    before update on m10_recovery.outbox
    for each row
    when (old.processed_at is not null)
    execute function tenancy.refuse_change('a processed event never changes');
create or replace trigger outbox_events_are_facts
    before update of id, aggregate_type, aggregate_id, event_type, payload, created_at, tenant_id on m10_recovery.outbox
    for each row
    execute function tenancy.refuse_change('a published event never changes');
create or replace trigger outbox_nothing_accepted_is_lost
    before delete on m10_recovery.outbox
    for each row
    when (old.processed_at is null)
    execute function tenancy.refuse_unless_erased_or_removed('an event that is not processed cannot be removed');
create or replace trigger outbox_is_never_emptied
    before truncate on m10_recovery.outbox
    for each statement
    execute function tenancy.refuse_change('events are removed by prune_outbox, once processed');

create or replace trigger sink_sets_are_facts
    before update or delete on events.sink_sets
    for each row
    execute function tenancy.refuse_change('a registered set of sinks stays as it was registered');
create or replace trigger sink_sets_are_never_emptied
    before truncate on events.sink_sets
    for each statement
    execute function tenancy.refuse_change('a registered set of sinks stays as it was registered');

grant usage on schema m10_recovery to postrider_app, postrider_worker, postrider_read, postrider_publish;
grant usage on schema events to postrider_app, postrider_worker, postrider_read;
grant select on m10_recovery.outbox to postrider_app, postrider_worker, postrider_read;
grant select on events.sink_sets to postrider_worker, postrider_read;

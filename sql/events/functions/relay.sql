-- Functions of the relay: it registers its sinks, and claims, completes and releases events in batches under the
-- registered sinks.

create or replace function events.register_sinks(p_sinks jsonb, p_actor text)
returns table (generation bigint, sinks jsonb, registered_at timestamptz, registered_by text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from events.sink_sets) then
        -- If two relays start at once, the second one waits here and then sees the sinks of the first.
        lock table events.sink_sets in exclusive mode;
        insert into events.sink_sets (generation, sinks, registered_by)
        select 1, p_sinks, p_actor
         where not exists (select from events.sink_sets);
    end if;
    return query
        select registered.generation, registered.sinks, registered.registered_at, registered.registered_by
          from events.sink_sets as registered
         order by registered.generation desc
         limit 1;
end
$$;
revoke all on function events.register_sinks(jsonb, text) from public;
grant execute on function events.register_sinks(jsonb, text) to postrider_worker;
comment on function events.register_sinks(jsonb, text) is
    'Registers the sinks if none are registered yet, and returns the registered ones.';

create or replace function events.claim_events(p_generation bigint, p_processor_id text, p_batch_size integer)
returns table (
    tenant_id uuid,
    id bigint,
    aggregate_type text,
    aggregate_id text,
    event_type text,
    payload jsonb,
    retry_count integer,
    created_at timestamptz,
    delivered_to text[])
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_ids bigint[];
begin
    if (select max(registered.generation) from events.sink_sets as registered) is distinct from p_generation then
        raise exception 'the sinks of generation % are not the registered ones', coalesce(p_generation::text, 'null')
            using errcode = 'PR004',
                  hint = 'Run `postrider relay sinks` to see the registered ones.';
    end if;
    -- Claim first, then read in a statement of its own. A single statement would claim events that were committed after
    -- its snapshot, not find them when it reads the outbox, and keep them claimed without returning them. The function of
    -- the contract returns no tenant, so the id alone finds its rows.
    v_ids := array(select claimed.id from m10_recovery.claim_outbox_events(p_processor_id, p_batch_size) as claimed);
    return query
        select event.tenant_id,
               event.id,
               event.aggregate_type,
               event.aggregate_id,
               event.event_type,
               event.payload,
               event.retry_count,
               event.created_at,
               array(select noted.sink
                       from events.outbox_deliveries as noted
                      where noted.tenant_id = event.tenant_id
                        and noted.event_id = event.id)
          from m10_recovery.outbox as event
         where event.id = any (v_ids);
end
$$;
revoke all on function events.claim_events(bigint, text, integer) from public;
grant execute on function events.claim_events(bigint, text, integer) to postrider_worker;
comment on function events.claim_events(bigint, text, integer) is
    'Claims events of all tenants for a relay that delivers to the sinks of this generation. For each event it also '
    'returns its tenant, when it was published and which sinks have it. Raises PR004 if other sinks are registered.';

-- The lock makes replace_sinks wait for the end of this transaction, so no event is completed under sinks that were
-- replaced.
create or replace function events.complete_events(
    p_generation bigint,
    p_processor_id text,
    p_tenant_ids uuid[],
    p_event_ids bigint[],
    p_errors text[])
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    lock table events.sink_sets in row share mode;
    if (select max(registered.generation) from events.sink_sets as registered) is distinct from p_generation then
        return false;
    end if;
    perform events.complete_outbox_events(p_processor_id, p_tenant_ids, p_event_ids, p_errors);
    return true;
end
$$;
revoke all on function events.complete_events(bigint, text, uuid[], bigint[], text[]) from public;
grant execute on function events.complete_events(bigint, text, uuid[], bigint[], text[]) to postrider_worker;
comment on function events.complete_events(bigint, text, uuid[], bigint[], text[]) is
    'Completes events like events.complete_outbox_events, if the sinks of this generation are the registered '
    'ones. Otherwise it returns false and changes nothing: the events were delivered to other sinks, and the relay '
    'releases them.';

create or replace function events.complete_outbox_events(
    p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_errors text[])
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
-- A plan from the time when the table was empty reads all unprocessed events. One plan serves the whole batch.
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now constant timestamptz := now();
    v_succeeded constant bigint := (select count(*)
                                      from unnest(p_event_ids, p_errors) as done (id, error)
                                     where done.error is null);
    v_completed bigint;
begin
    update m10_recovery.outbox as event
       set processed_at = v_now
      from unnest(p_tenant_ids, p_event_ids, p_errors) as done (tenant_id, id, error)
     where done.error is null
       and event.tenant_id = done.tenant_id
       and event.id = done.id
       and event.claimed_by = p_processor_id
       and event.processed_at is null;
    get diagnostics v_completed = row_count;

    -- Some events were completed before, are not held, or do not exist. The function of the contract decides which of
    -- these is an error.
    if v_completed <> v_succeeded then
        perform m10_recovery.complete_outbox_event(done.id, p_processor_id, true)
           from unnest(p_event_ids, p_errors) as done (id, error)
          where done.error is null;
    end if;
    if v_succeeded < cardinality(p_event_ids) then
        perform m10_recovery.complete_outbox_event(done.id, p_processor_id, false, done.error)
           from unnest(p_event_ids, p_errors) as done (id, error)
          where done.error is not null;
    end if;
end
$$;
revoke all on function events.complete_outbox_events(text, uuid[], bigint[], text[]) from public;
grant execute on function events.complete_outbox_events(text, uuid[], bigint[], text[]) to postrider_worker;
comment on function events.complete_outbox_events(text, uuid[], bigint[], text[]) is
    'Completes many events of one processor, of any tenants, under the rules of complete_outbox_event: all of them or '
    'none. A null error is a success. One statement per event would cost more than the event.';

create or replace function events.release_outbox_events(
    p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_delays_ms bigint[])
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
-- A plan from the time when the table was empty reads all unprocessed events.
set plan_cache_mode = force_custom_plan
as $$
declare
    v_now constant timestamptz := now();
begin
    update m10_recovery.outbox as event
       set process_after = v_now + released.delay_ms * interval '1 millisecond',
           claimed_at = null,
           claimed_by = null
      from unnest(p_tenant_ids, p_event_ids, p_delays_ms) as released (tenant_id, id, delay_ms)
     where event.tenant_id = released.tenant_id
       and event.id = released.id
       and event.claimed_by = p_processor_id
       and event.processed_at is null;
end
$$;
revoke all on function events.release_outbox_events(text, uuid[], bigint[], bigint[]) from public;
grant execute on function events.release_outbox_events(text, uuid[], bigint[], bigint[]) to postrider_worker;
comment on function events.release_outbox_events(text, uuid[], bigint[], bigint[]) is
    'Releases claimed events that were not tried, because their sink was busy or the relay stops. It counts no '
    'failure; each event is ready again after its delay.';

create or replace function events.note_deliveries(
    p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_sinks text[])
returns void
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    insert into events.outbox_deliveries (tenant_id, event_id, sink)
    select event.tenant_id, event.id, noted.sink
      from unnest(p_tenant_ids, p_event_ids, p_sinks) as noted (tenant_id, event_id, sink)
      join m10_recovery.outbox as event on event.tenant_id = noted.tenant_id and event.id = noted.event_id
     where event.claimed_by = p_processor_id
       and event.processed_at is null
     order by event.tenant_id, event.id, noted.sink
        on conflict do nothing
$$;
revoke all on function events.note_deliveries(text, uuid[], bigint[], text[]) from public;
grant execute on function events.note_deliveries(text, uuid[], bigint[], text[]) to postrider_worker;
comment on function events.note_deliveries(text, uuid[], bigint[], text[]) is
    'Records the sinks that have an event which the processor holds.';

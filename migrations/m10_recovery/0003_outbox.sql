-- Domain events: the outbox and the three functions of its contract.
-- Safe beside running workers: it adds a schema and touches no other.

create schema m10_recovery;
grant usage on schema m10_recovery to postrider_app, postrider_worker, postrider_read;

-- `process_after` alone decides when an event may be claimed. There is no second field that could disagree.
--
-- `tenant_id` is the publisher's tenant context and may be absent: it decides who sees the row, never whether it
-- is delivered.
--
-- Half of each page is left free, so that claiming an event rewrites it in place (HOT): no index mentions a
-- column that a claim changes.
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
    tenant_id      uuid        references tenancy.tenants (id),
    primary key (id)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
select tenancy.protect('m10_recovery.outbox');

-- For claims: waiting events in the order in which they became ready. Processed ones are not in it.
create index outbox_ready_to_claim
    on m10_recovery.outbox ((coalesce(process_after, '-infinity'::timestamptz)), id)
    where processed_at is null;

-- For the list of stuck events. An event that never failed is not in it.
create index outbox_failed_before
    on m10_recovery.outbox (retry_count, id)
    where processed_at is null and retry_count > 0;

-- For a tenant's own list.
create index outbox_by_tenant
    on m10_recovery.outbox (tenant_id, id)
    where tenant_id is not null;

-- What would be CHECKs elsewhere are triggers here. Postgres prepares every CHECK of a table anew for every statement,
-- and a consumer completes events one statement each; a trigger is prepared only where its columns are set.
create trigger outbox_events_begin_well
    before insert on m10_recovery.outbox
    for each row
    when (new.aggregate_type = '' or new.aggregate_id = '' or new.event_type = ''
          or new.retry_count < 0
          or (new.claimed_at is null) <> (new.claimed_by is null))
    execute function tenancy.refuse_change('an event has its three names, counts from zero, and a claim has a holder');
create trigger outbox_retries_count_from_zero
    before update of retry_count on m10_recovery.outbox
    for each row
    when (new.retry_count < 0)
    execute function tenancy.refuse_change('retry_count counts failures and is never negative');
create trigger outbox_claim_has_a_holder
    before update of claimed_at, claimed_by on m10_recovery.outbox
    for each row
    when ((new.claimed_at is null) <> (new.claimed_by is null))
    execute function tenancy.refuse_change('a claim has a time and a holder, or neither');
create trigger outbox_processed_is_final
    before update on m10_recovery.outbox
    for each row
    when (old.processed_at is not null)
    execute function tenancy.refuse_change('a processed event never changes');
create trigger outbox_events_are_facts
    before update of id, aggregate_type, aggregate_id, event_type, payload, created_at, tenant_id on m10_recovery.outbox
    for each row
    execute function tenancy.refuse_change('what was published stays as it was published');
create trigger outbox_nothing_accepted_is_lost
    before delete on m10_recovery.outbox
    for each row
    when (old.processed_at is null)
    execute function tenancy.refuse_change('an event that is not processed cannot be removed');
create trigger outbox_is_never_emptied
    before truncate on m10_recovery.outbox
    for each statement
    execute function tenancy.refuse_change('events are removed by prune_outbox, once processed');

-- Publishes an event in the caller's transaction: with its commit the event exists, with its rollback it never did.
create function m10_recovery.publish_outbox(
    p_aggregate_type text,
    p_aggregate_id text,
    p_event_type text,
    p_payload jsonb)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    if p_payload is null
       or btrim(p_aggregate_type) is not distinct from '' or btrim(p_aggregate_id) is not distinct from ''
       or btrim(p_event_type) is not distinct from ''
       or p_aggregate_type is null or p_aggregate_id is null or p_event_type is null
    then
        raise exception 'aggregate type, aggregate id, event type and payload must all be given'
            using errcode = 'invalid_parameter_value',
                  hint = 'For example: publish_outbox(''order'', ''42'', ''order.placed'', ''{"total": 12}'').';
    end if;
    if greatest(octet_length(p_aggregate_type), octet_length(p_aggregate_id), octet_length(p_event_type)) > 255 then
        raise exception 'aggregate type, aggregate id and event type have at most 255 bytes'
            using errcode = 'invalid_parameter_value';
    end if;
    if p_event_type ~ '[[:cntrl:]]' or p_aggregate_type ~ '[[:cntrl:]]' or p_aggregate_id ~ '[[:cntrl:]]' then
        raise exception 'aggregate type, aggregate id and event type hold no control characters'
            using errcode = 'invalid_parameter_value';
    end if;
    -- `#> '{}'` is the payload itself, unpacked: one that comes from a table's column may be compressed.
    if pg_column_size(p_payload #> '{}') > 262144 then
        raise exception 'the payload has % bytes; the limit is 262144', pg_column_size(p_payload #> '{}')
            using errcode = 'program_limit_exceeded',
                  hint = 'Publish a reference to the data instead of the data.';
    end if;
    -- A few bytes of jsonb can be megabytes of text, and it is the text that is delivered.
    if octet_length(p_payload::text) > 1048576 then
        raise exception 'the payload has % bytes as text; the limit is 1048576', octet_length(p_payload::text)
            using errcode = 'program_limit_exceeded',
                  hint = 'Publish a reference to the data instead of the data.';
    end if;

    -- Ready from the start: then waiting events and due retries take turns by the time they became ready.
    insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, process_after, tenant_id)
    values (p_aggregate_type, p_aggregate_id, p_event_type, p_payload, now(), tenancy.current_tenant_id())
    returning id into v_id;
    return v_id;
end
$$;

-- Takes up to `p_batch_size` events that nobody holds and that are ready, oldest first, and gives them to
-- `p_processor_id` for five minutes. The planner is held to the one good plan, whatever the statistics say.
--
-- Completed events leave dead entries at the head of the index until a vacuum can remove them, and every claim from
-- the head has to step over them all. So a session remembers where its last claim began and begins there again. That
-- is a matter of speed alone: whenever fewer events are found than asked for, and once a second in any case, the
-- claim begins at the head, where late commits and stale claims turn up.
create function m10_recovery.claim_outbox_events(
    p_processor_id text,
    p_batch_size integer default 10)
returns table (
    id bigint,
    aggregate_type text,
    aggregate_id text,
    event_type text,
    payload jsonb,
    retry_count integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    -- When this session last began at the head, and where its last claim began: microseconds, microseconds, id. Numbers,
    -- because the text of a time depends on the session's settings. Anything else is no memory.
    v_memory constant bigint[] := string_to_array(
        substring(current_setting('m10_recovery.claims_begin', true) from '^\d{1,18},-?\d{1,18},\d{1,18}$'), ',')::bigint[];
    v_now constant bigint := extract(epoch from clock_timestamp()) * 1000000;
    -- Not when the memory is of the future, either: clocks can be set back.
    v_from_head boolean := v_memory is null or v_now - v_memory[1] not between 0 and 1000000;
    v_begin_at timestamptz := '-infinity';
    v_begin_id bigint := 0;
    v_ids bigint[];
begin
    if coalesce(btrim(p_processor_id), '') = '' then
        raise exception 'a processor must name itself to claim events'
            using errcode = 'invalid_parameter_value',
                  hint = 'Use a name that is new at every start of the process.';
    end if;
    if p_batch_size is null or p_batch_size not between 1 and 10000 then
        raise exception 'the batch size must lie between 1 and 10000, not %', coalesce(p_batch_size::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;

    if not v_from_head then
        v_begin_at := 'epoch'::timestamptz + v_memory[2] * interval '1 microsecond';
        v_begin_id := v_memory[3];
    end if;
    loop
        v_ids := array(
            select ready.id
              from m10_recovery.outbox as ready
             where ready.processed_at is null
               -- The same as: process_after is null or process_after <= now(), in the index's words.
               and coalesce(ready.process_after, '-infinity'::timestamptz) <= now()
               and (ready.claimed_at is null or ready.claimed_at < now() - interval '5 minutes')
               and (coalesce(ready.process_after, '-infinity'::timestamptz), ready.id) >= (v_begin_at, v_begin_id)
             order by coalesce(ready.process_after, '-infinity'::timestamptz), ready.id
             limit p_batch_size
               for update skip locked);
        exit when v_from_head or cardinality(v_ids) = p_batch_size;
        v_from_head := true;
        v_begin_at := '-infinity';
        v_begin_id := 0;
    end loop;
    if cardinality(v_ids) = 0 then
        return;
    end if;

    -- An event without a time begins before all others; then there is nothing to remember but that.
    select first.process_after, first.id
      into v_begin_at, v_begin_id
      from m10_recovery.outbox as first
     where first.id = v_ids[1]
       and first.process_after is not null;
    if found then
        perform set_config('m10_recovery.claims_begin',
                           concat_ws(',', case when v_from_head then v_now else v_memory[1] end,
                                     (extract(epoch from v_begin_at) * 1000000)::bigint, v_begin_id),
                           false);
    end if;

    return query
        update m10_recovery.outbox as event
           set claimed_at = now(),
               claimed_by = p_processor_id
         where event.id = any (v_ids)
     returning event.id,
               event.aggregate_type,
               event.aggregate_id,
               event.event_type,
               event.payload,
               event.retry_count;
end
$$;

-- Ends a claim. Success is final; failure puts the event back for later. Only the processor that holds the claim
-- can end it; telling a success twice is the same as once.
create function m10_recovery.complete_outbox_event(
    p_event_id bigint,
    p_processor_id text,
    p_success boolean,
    p_error text default null)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_event record;
begin
    if p_success then
        update m10_recovery.outbox as event
           set processed_at = now()
         where event.id = p_event_id
           and event.claimed_by = p_processor_id
           and event.processed_at is null;
    elsif p_success is null then
        raise exception 'p_success must be true or false' using errcode = 'invalid_parameter_value';
    else
        update m10_recovery.outbox as event
           set retry_count = event.retry_count + 1,
               process_after = now() + (power(2, least(event.retry_count, 10)) || ' seconds')::interval,
               claimed_at = null,
               claimed_by = null,
               last_error = left(p_error, 2000)
         where event.id = p_event_id
           and event.claimed_by = p_processor_id
           and event.processed_at is null;
    end if;
    if found then
        return;
    end if;

    select event.processed_at, event.claimed_by
      into v_event
      from m10_recovery.outbox as event
     where event.id = p_event_id;
    if not found then
        raise exception 'there is no event %', p_event_id using errcode = 'no_data_found';
    end if;
    if p_success and v_event.processed_at is not null and v_event.claimed_by = p_processor_id then
        return;
    end if;
    raise exception 'event % is not held by %', p_event_id, coalesce(p_processor_id, 'null')
        using errcode = 'PR001',
              detail = case
                           when v_event.processed_at is not null then 'It is processed.'
                           when v_event.claimed_by is null then 'Nobody holds it.'
                           else 'Another processor holds it.'
                       end,
              hint = 'A claim lasts five minutes; it may have gone stale and been taken by another processor.';
end
$$;

-- The same for many events of one processor: what holds for one call of complete_outbox_event holds for each of
-- them, and all of them succeed or none. An error of null is a success. The relay uses it, because a statement per
-- event costs more than the event.
create function m10_recovery.complete_outbox_events(p_processor_id text, p_event_ids bigint[], p_errors text[])
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_succeeded constant bigint[] := array(select done.id
                                             from unnest(p_event_ids, p_errors) as done (id, error)
                                            where done.error is null);
    v_completed bigint;
begin
    update m10_recovery.outbox as event
       set processed_at = now()
     where event.id = any (v_succeeded)
       and event.claimed_by = p_processor_id
       and event.processed_at is null;
    get diagnostics v_completed = row_count;

    -- Told twice, not held, or unknown: rare, and the contract's function knows which of them is an error.
    if v_completed <> cardinality(v_succeeded) then
        perform m10_recovery.complete_outbox_event(done.id, p_processor_id, true)
           from unnest(v_succeeded) as done (id);
    end if;
    if cardinality(v_succeeded) < cardinality(p_event_ids) then
        perform m10_recovery.complete_outbox_event(done.id, p_processor_id, false, done.error)
           from unnest(p_event_ids, p_errors) as done (id, error)
          where done.error is not null;
    end if;
end
$$;

-- Gives claimed events back untried: their sink was busy, or the relay stops. Nothing failed, so nothing is counted;
-- each is ready again after its delay.
create function m10_recovery.release_outbox_events(p_processor_id text, p_event_ids bigint[], p_delays_ms bigint[])
returns void
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    update m10_recovery.outbox as event
       set process_after = now() + released.delay_ms * interval '1 millisecond',
           claimed_at = null,
           claimed_by = null
      from unnest(p_event_ids, p_delays_ms) as released (id, delay_ms)
     where event.id = released.id
       and event.claimed_by = p_processor_id
       and event.processed_at is null
$$;

-- What is wrong with the three functions, one sentence each; no row means that the contract holds.
create function m10_recovery.contract_violations()
returns setof text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    with contract (name, arguments, result) as (
        values ('publish_outbox',
                'p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb',
                'bigint'),
               ('claim_outbox_events',
                'p_processor_id text, p_batch_size integer DEFAULT 10',
                'TABLE(id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, retry_count integer)'),
               ('complete_outbox_event',
                'p_event_id bigint, p_processor_id text, p_success boolean, p_error text DEFAULT NULL::text',
                'void')
    ), found as (
        select routine.proname::text as name,
               pg_get_function_arguments(routine.oid) as arguments,
               pg_get_function_result(routine.oid) as result
          from pg_proc as routine
         where routine.pronamespace = 'm10_recovery'::regnamespace
    )
    select format('m10_recovery.%s has %s signatures instead of one', contract.name, count(found.name))
      from contract
      left join found using (name)
     group by contract.name
    having count(found.name) <> 1
    union all
    select format('m10_recovery.%s(%s) returns %s; the contract says (%s) returns %s',
                  found.name, found.arguments, found.result, contract.arguments, contract.result)
      from contract
      join found using (name)
     where (found.arguments, found.result) is distinct from (contract.arguments, contract.result)
    union all
    select format('m10_recovery.outbox has a column %s, which the contract forbids', attname)
      from pg_attribute
     where attrelid = 'm10_recovery.outbox'::regclass
       and attname = 'next_retry_at'
       and not attisdropped
$$;

do $$
declare
    v_violations constant text := (select string_agg(violation, '; ')
                                     from m10_recovery.contract_violations() as violation);
begin
    if v_violations is not null then
        raise exception 'the event contract does not hold: %', v_violations;
    end if;
end
$$;

revoke all on all functions in schema m10_recovery from public;
grant execute on function m10_recovery.contract_violations() to postrider_app, postrider_worker, postrider_read;
grant execute on function m10_recovery.publish_outbox(text, text, text, jsonb) to postrider_app, postrider_worker;
grant execute on function
    m10_recovery.claim_outbox_events(text, integer),
    m10_recovery.complete_outbox_event(bigint, text, boolean, text),
    m10_recovery.complete_outbox_events(text, bigint[], text[]),
    m10_recovery.release_outbox_events(text, bigint[], bigint[])
    to postrider_worker;
grant select on m10_recovery.outbox to postrider_app, postrider_worker, postrider_read;

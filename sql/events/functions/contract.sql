-- The three functions of the M10 contract. Schema m10_recovery holds them, their table and nothing else; the migrator and
-- `postrider doctor` compare it with the list in docs/contract.md.

create or replace function m10_recovery.publish_outbox(
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
    -- `#> '{}'` returns the payload uncompressed: a value from a table's column may be compressed.
    if pg_column_size(p_payload #> '{}') > 262144 then
        raise exception 'the payload has % bytes; the limit is 262144', pg_column_size(p_payload #> '{}')
            using errcode = 'program_limit_exceeded',
                  hint = 'Publish a reference to the data instead of the data.';
    end if;
    -- A few bytes of jsonb can be megabytes of text, and sinks receive the text.
    if octet_length(p_payload::text) > 1048576 then
        raise exception 'the payload has % bytes as text; the limit is 1048576', octet_length(p_payload::text)
            using errcode = 'program_limit_exceeded',
                  hint = 'Publish a reference to the data instead of the data.';
    end if;

    -- A new event is ready at once, so that claims take new events and due retries in the order in which they became
    -- ready.
    insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, process_after, tenant_id)
    values (p_aggregate_type, p_aggregate_id, p_event_type, p_payload, now(), tenancy.publishing_tenant_id())
    returning id into v_id;
    return v_id;
end
$$;
revoke all on function m10_recovery.publish_outbox(text, text, text, jsonb) from public;
grant execute on function m10_recovery.publish_outbox(text, text, text, jsonb)
    to postrider_app, postrider_worker, postrider_publish;
comment on function m10_recovery.publish_outbox(text, text, text, jsonb) is
    'Publishes an event in the transaction of the caller and returns its id. The event exists if and only if that '
    'transaction commits.';

-- Completed events leave dead index entries at the head of the index until a vacuum removes them, and a claim from the
-- head has to step over all of them. So a session remembers where its last claim began and begins there again. This
-- only saves time: a claim that finds fewer events than requested, and at least one claim per second, begins at the
-- head, where late commits and stale claims appear. The planner settings leave the one good plan, whatever the
-- statistics say.
create or replace function m10_recovery.claim_outbox_events(
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
    -- When this session last began at the head, and where its last claim began: microseconds, microseconds, id. These
    -- are numbers, because the text of a time depends on the session's settings. Any other value is ignored.
    v_memory constant bigint[] := string_to_array(
        substring(current_setting('m10_recovery.claims_begin', true) from '^\d{1,18},-?\d{1,18},\d{1,18}$'), ',')::bigint[];
    v_now constant bigint := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
    -- A time in the future is ignored, too: clocks can be set back.
    v_from_head boolean := v_memory is null or v_now - v_memory[1] not between 0 and 1000000;
    v_begin_at timestamptz := timestamptz '-infinity';
    v_begin_id bigint := 0::bigint;
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
               -- Means `process_after is null or process_after <= now()`, written as in the index.
               and coalesce(ready.process_after, '-infinity'::timestamptz) <= now()
               and (ready.claimed_at is null or ready.claimed_at < now() - interval '5 minutes')
               and (coalesce(ready.process_after, '-infinity'::timestamptz), ready.id) >= (v_begin_at, v_begin_id)
             order by coalesce(ready.process_after, '-infinity'::timestamptz), ready.id
             limit p_batch_size
               for update skip locked);
        exit when v_from_head or cardinality(v_ids) = p_batch_size;
        v_from_head := true;
        v_begin_at := timestamptz '-infinity';
        v_begin_id := 0::bigint;
    end loop;
    if cardinality(v_ids) = 0 then
        return;
    end if;

    -- An event without process_after sorts before all others, so there is no position to remember.
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
revoke all on function m10_recovery.claim_outbox_events(text, integer) from public;
grant execute on function m10_recovery.claim_outbox_events(text, integer) to postrider_worker;
comment on function m10_recovery.claim_outbox_events(text, integer) is
    'Claims up to p_batch_size ready events that no processor holds, oldest first, for p_processor_id. A claim is '
    'valid for five minutes.';

create or replace function m10_recovery.complete_outbox_event(
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
                           when v_event.claimed_by is null then 'No processor holds it.'
                           else 'Another processor holds it.'
                       end,
              hint = 'A claim lasts five minutes; it may have gone stale and been taken by another processor.';
end
$$;
revoke all on function m10_recovery.complete_outbox_event(bigint, text, boolean, text) from public;
grant execute on function m10_recovery.complete_outbox_event(bigint, text, boolean, text) to postrider_worker;
comment on function m10_recovery.complete_outbox_event(bigint, text, boolean, text) is
    'Ends a claim. Success is final; failure releases the event with an exponential backoff. Only the processor that '
    'holds the claim can end it; reporting a success twice is allowed.';

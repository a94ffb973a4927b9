-- What the relay and its operators need around the contract: partial deliveries, retry and close by a person,
-- the backlog's size, and retention.
-- Safe beside running workers: it adds a table and functions and touches no other.

-- Which sinks have an event already, written only when another sink of the same event failed: then a retry does
-- not go to those that took it. Losing a row here costs a repeated delivery, nothing more.
create table m10_recovery.outbox_deliveries (
    event_id     bigint      not null references m10_recovery.outbox (id) on delete cascade,
    sink         text        not null,
    delivered_at timestamptz not null default now(),
    primary key (event_id, sink)
);

create function m10_recovery.note_deliveries(p_processor_id text, p_event_ids bigint[], p_sinks text[])
returns void
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    insert into m10_recovery.outbox_deliveries (event_id, sink)
    select noted.event_id, noted.sink
      from unnest(p_event_ids, p_sinks) as noted (event_id, sink)
      join m10_recovery.outbox as event on event.id = noted.event_id
     where event.claimed_by = p_processor_id
       and event.processed_at is null
     order by noted.event_id, noted.sink
        on conflict do nothing
$$;

-- What a claim does not tell: when the event was published, and which sinks have it.
create function m10_recovery.describe_claims(p_processor_id text, p_event_ids bigint[])
returns table (id bigint, created_at timestamptz, delivered_to text[])
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select event.id,
           event.created_at,
           case
               when event.retry_count = 0 then '{}'
               else array(select noted.sink from m10_recovery.outbox_deliveries as noted where noted.event_id = event.id)
           end
      from m10_recovery.outbox as event
     where event.id = any (p_event_ids)
       and event.claimed_by = p_processor_id
$$;

-- Makes a waiting event ready now. `retry_count` stays: it is the event's history.
create function m10_recovery.retry_outbox_event(p_event_id bigint, p_actor text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_event record;
begin
    select event.tenant_id, event.processed_at, event.claimed_at
      into v_event
      from m10_recovery.outbox as event
     where event.id = p_event_id
       and tenancy.may_act_for(event.tenant_id)
       for update;
    if not found then
        return 'unknown';
    end if;
    if v_event.processed_at is not null then
        return 'processed';
    end if;
    if v_event.claimed_at >= now() - interval '5 minutes' then
        return 'claimed';
    end if;

    update m10_recovery.outbox as event
       set process_after = now()
     where event.id = p_event_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_event.tenant_id, p_actor, 'event.retried', 'event:' || p_event_id);
    return 'done';
end
$$;

-- Ends an event without delivering it, because a person says so. A processor that is delivering it at this moment
-- loses its claim.
create function m10_recovery.close_outbox_event(p_event_id bigint, p_actor text, p_note text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_event record;
begin
    if coalesce(btrim(p_note), '') = '' then
        raise exception 'closing an event needs a note that says why' using errcode = 'invalid_parameter_value';
    end if;
    select event.tenant_id, event.processed_at
      into v_event
      from m10_recovery.outbox as event
     where event.id = p_event_id
       and tenancy.may_act_for(event.tenant_id)
       for update;
    if not found then
        return 'unknown';
    end if;
    if v_event.processed_at is not null then
        return 'processed';
    end if;

    update m10_recovery.outbox as event
       set processed_at = now(),
           claimed_at = null,
           claimed_by = null,
           last_error = left('closed by ' || p_actor || ': ' || p_note, 2000)
     where event.id = p_event_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_event.tenant_id, p_actor, 'event.closed', 'event:' || p_event_id, p_note);
    return 'done';
end
$$;

-- How much waits, over all tenants. Counting stops at 100,000: more is "many", and asking must stay cheap.
create function m10_recovery.outbox_backlog(p_stuck_after integer)
returns table (pending bigint, stuck bigint, oldest_ready_seconds double precision)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select (select count(*)
              from (select from m10_recovery.outbox as event where event.processed_at is null limit 100000) as counted),
           (select count(*)
              from (select
                      from m10_recovery.outbox as event
                     where event.processed_at is null
                       and event.retry_count > 0
                       and event.retry_count > p_stuck_after
                     limit 100000) as counted),
           coalesce((select extract(epoch from now() - coalesce(event.process_after, event.created_at))
                       from m10_recovery.outbox as event
                      where event.processed_at is null
                        and coalesce(event.process_after, '-infinity'::timestamptz) <= now()
                        and (event.claimed_at is null or event.claimed_at < now() - interval '5 minutes')
                      order by coalesce(event.process_after, '-infinity'::timestamptz), event.id
                      limit 1), 0)::double precision
$$;

-- Removes what was processed before the given time, looking at one window of ids, so that each call is short
-- however large the table is. Call it again from `last_id` until `done`.
create function m10_recovery.prune_outbox(
    p_processed_before timestamptz,
    p_after_id bigint default 0,
    p_window integer default 1000)
returns table (removed bigint, last_id bigint, done boolean)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids bigint[];
    v_removed bigint;
begin
    if p_window is null or p_window < 1 then
        raise exception 'the window must hold at least one id' using errcode = 'invalid_parameter_value';
    end if;
    v_ids := array(select event.id
                     from m10_recovery.outbox as event
                    where event.id > p_after_id
                    order by event.id
                    limit p_window);
    -- Ids rise with time, so what follows a row that was published after the limit was processed after it, too.
    delete from m10_recovery.outbox as event
     where event.id = any (v_ids)
       and event.processed_at < p_processed_before;
    get diagnostics v_removed = row_count;
    return query
        select v_removed,
               coalesce(v_ids[cardinality(v_ids)], p_after_id),
               cardinality(v_ids) < p_window
               or exists (select
                            from m10_recovery.outbox as event
                           where event.id = v_ids[cardinality(v_ids)]
                             and event.created_at >= p_processed_before);
end
$$;

revoke all on function
    m10_recovery.note_deliveries(text, bigint[], text[]),
    m10_recovery.describe_claims(text, bigint[]),
    m10_recovery.retry_outbox_event(bigint, text),
    m10_recovery.close_outbox_event(bigint, text, text),
    m10_recovery.outbox_backlog(integer),
    m10_recovery.prune_outbox(timestamptz, bigint, integer)
    from public;
grant execute on function
    m10_recovery.note_deliveries(text, bigint[], text[]),
    m10_recovery.describe_claims(text, bigint[]),
    m10_recovery.outbox_backlog(integer),
    m10_recovery.prune_outbox(timestamptz, bigint, integer)
    to postrider_worker;
grant execute on function
    m10_recovery.retry_outbox_event(bigint, text),
    m10_recovery.close_outbox_event(bigint, text, text)
    to postrider_app;

-- Functions for operators and retention: retry and close an event, replace the sinks, measure the backlog, delete old
-- events.

create or replace function events.retry_outbox_event(p_tenant_id uuid, p_event_id bigint, p_actor text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_event record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select event.processed_at, event.claimed_at
      into v_event
      from m10_recovery.outbox as event
     where event.tenant_id = p_tenant_id
       and event.id = p_event_id
       for update;
    if not found then
        return 'unknown';
    end if;
    if v_event.processed_at is not null then
        return 'processed';
    end if;
    if v_event.claimed_at >= v_now - interval '5 minutes' then
        return 'claimed';
    end if;

    update m10_recovery.outbox as event
       set process_after = v_now
     where event.tenant_id = p_tenant_id
       and event.id = p_event_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'event.retried', 'event:' || p_event_id);
    return 'done';
end
$$;
revoke all on function events.retry_outbox_event(uuid, bigint, text) from public;
grant execute on function events.retry_outbox_event(uuid, bigint, text) to postrider_app;
comment on function events.retry_outbox_event(uuid, bigint, text) is
    'Makes a pending event ready now. `retry_count` stays, because it is the history of the event. Returns `done`, '
    '`unknown`, `processed` or `claimed`.';

create or replace function events.close_outbox_event(p_tenant_id uuid, p_event_id bigint, p_actor text, p_note text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_event record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if coalesce(btrim(p_note), '') = '' then
        raise exception 'closing an event needs a note that says why' using errcode = 'invalid_parameter_value';
    end if;
    select event.processed_at
      into v_event
      from m10_recovery.outbox as event
     where event.tenant_id = p_tenant_id
       and event.id = p_event_id
       for update;
    if not found then
        return 'unknown';
    end if;
    if v_event.processed_at is not null then
        return 'processed';
    end if;

    update m10_recovery.outbox as event
       set processed_at = v_now,
           claimed_at = null,
           claimed_by = null,
           last_error = left('closed by ' || p_actor || ': ' || p_note, 2000)
     where event.tenant_id = p_tenant_id
       and event.id = p_event_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'event.closed', 'event:' || p_event_id, p_note);
    return 'done';
end
$$;
revoke all on function events.close_outbox_event(uuid, bigint, text, text) from public;
grant execute on function events.close_outbox_event(uuid, bigint, text, text) to postrider_app;
comment on function events.close_outbox_event(uuid, bigint, text, text) is
    'Ends an event without delivering it, with a note that says why. A processor that holds the event loses its '
    'claim. Returns `done`, `unknown` or `processed`.';

create or replace function events.replace_sinks(p_sinks jsonb, p_actor text)
returns table (generation bigint, sinks jsonb, registered_at timestamptz, registered_by text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_registered events.sink_sets;
begin
    lock table events.sink_sets in exclusive mode;
    select registered.*
      into v_registered
      from events.sink_sets as registered
     order by registered.generation desc
     limit 1;
    if v_registered.sinks is distinct from p_sinks then
        insert into events.sink_sets (generation, sinks, registered_by)
        values (coalesce(v_registered.generation, 0) + 1, p_sinks, p_actor)
        returning * into v_registered;
        insert into tenancy.audit_log (tenant_id, actor, action, subject)
        values (tenancy.system_tenant_id(), p_actor, 'sinks.replaced', 'sinks:' || v_registered.generation);
    end if;
    return query
        select v_registered.generation, v_registered.sinks, v_registered.registered_at, v_registered.registered_by;
end
$$;
revoke all on function events.replace_sinks(jsonb, text) from public;
comment on function events.replace_sinks(jsonb, text) is
    'Registers these sinks in place of the registered ones, and returns the registered ones. Completions under way '
    'commit first; complete_events refuses later ones under the old sinks.';

create or replace function events.outbox_backlog(p_stuck_after integer)
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
revoke all on function events.outbox_backlog(integer) from public;
grant execute on function events.outbox_backlog(integer) to postrider_worker;
comment on function events.outbox_backlog(integer) is
    'Counts the pending and stuck events of all tenants, each up to 100,000 to stay cheap, and returns the age of the '
    'oldest ready event.';

create or replace function events.tenants_with_events()
returns setof uuid
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    select tenant.id
      from tenancy.tenants as tenant
     where exists (select from m10_recovery.outbox as event where event.tenant_id = tenant.id)
$$;
revoke all on function events.tenants_with_events() from public;
grant execute on function events.tenants_with_events() to postrider_worker;
comment on function events.tenants_with_events() is
    'Returns the tenants that have events, the system tenant included. Retention calls prune_outbox for each of them.';

create or replace function events.prune_outbox(
    p_tenant_id uuid,
    p_processed_before timestamptz,
    p_after_id bigint default 0,
    p_window integer default 1000)
returns table (removed bigint, last_id bigint, done boolean)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
-- A plan from the time when the table was empty reads all events of the tenant.
set plan_cache_mode = force_custom_plan
as $$
declare
    v_ids bigint[];
    v_removed bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_window is null or p_window < 1 then
        raise exception 'the window must hold at least one id' using errcode = 'invalid_parameter_value';
    end if;
    v_ids := array(select event.id
                     from m10_recovery.outbox as event
                    where event.tenant_id = p_tenant_id
                      and event.id > p_after_id
                    order by event.id
                    limit p_window);
    -- Ids rise with time: all events after one that was published after the limit were processed after it, too.
    delete from m10_recovery.outbox as event
     where event.tenant_id = p_tenant_id
       and event.id = any (v_ids)
       and event.processed_at < p_processed_before;
    get diagnostics v_removed = row_count;
    return query
        select v_removed,
               coalesce(v_ids[cardinality(v_ids)], p_after_id),
               cardinality(v_ids) < p_window
               or exists (select
                            from m10_recovery.outbox as event
                           where event.tenant_id = p_tenant_id
                             and event.id = v_ids[cardinality(v_ids)]
                             and event.created_at >= p_processed_before);
end
$$;
revoke all on function events.prune_outbox(uuid, timestamptz, bigint, integer) from public;
grant execute on function events.prune_outbox(uuid, timestamptz, bigint, integer) to postrider_worker;
comment on function events.prune_outbox(uuid, timestamptz, bigint, integer) is
    'Deletes events of one tenant that were processed before the given time, within one window of ids, so that each '
    'call is short. Call it again from `last_id` until `done`.';

-- All steps together: the schema as it is after `postrider migrate`. To read, not to run.
-- Made from the pg_dump of PostgreSQL 15; a test compares it. Refresh it with `make schema`.

CREATE SCHEMA m10_recovery;

CREATE SCHEMA postrider;

CREATE SCHEMA tenancy;

CREATE FUNCTION m10_recovery.claim_outbox_events(p_processor_id text, p_batch_size integer DEFAULT 10) RETURNS TABLE(id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, retry_count integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $_$
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
$_$;

CREATE FUNCTION m10_recovery.close_outbox_event(p_event_id bigint, p_actor text, p_note text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION m10_recovery.complete_outbox_event(p_event_id bigint, p_processor_id text, p_success boolean, p_error text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION m10_recovery.complete_outbox_events(p_processor_id text, p_event_ids bigint[], p_errors text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
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

CREATE FUNCTION m10_recovery.contract_violations() RETURNS SETOF text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION m10_recovery.describe_claims(p_processor_id text, p_event_ids bigint[]) RETURNS TABLE(id bigint, created_at timestamp with time zone, delivered_to text[])
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION m10_recovery.note_deliveries(p_processor_id text, p_event_ids bigint[], p_sinks text[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    insert into m10_recovery.outbox_deliveries (event_id, sink)
    select noted.event_id, noted.sink
      from unnest(p_event_ids, p_sinks) as noted (event_id, sink)
      join m10_recovery.outbox as event on event.id = noted.event_id
     where event.claimed_by = p_processor_id
       and event.processed_at is null
     order by noted.event_id, noted.sink
        on conflict do nothing
$$;

CREATE FUNCTION m10_recovery.outbox_backlog(p_stuck_after integer) RETURNS TABLE(pending bigint, stuck bigint, oldest_ready_seconds double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION m10_recovery.prune_outbox(p_processed_before timestamp with time zone, p_after_id bigint DEFAULT 0, p_window integer DEFAULT 1000) RETURNS TABLE(removed bigint, last_id bigint, done boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION m10_recovery.release_outbox_events(p_processor_id text, p_event_ids bigint[], p_delays_ms bigint[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update m10_recovery.outbox as event
       set process_after = now() + released.delay_ms * interval '1 millisecond',
           claimed_at = null,
           claimed_by = null
      from unnest(p_event_ids, p_delays_ms) as released (id, delay_ms)
     where event.id = released.id
       and event.claimed_by = p_processor_id
       and event.processed_at is null
$$;

CREATE FUNCTION m10_recovery.retry_outbox_event(p_event_id bigint, p_actor text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION tenancy.authenticate_api_key(p_key_hash bytea) RETURNS TABLE(key_id uuid, tenant_id uuid, role text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    update tenancy.api_keys as key
       set last_used_at = now()
     where key.key_hash = p_key_hash
       and key.revoked_at is null
       and (key.expires_at is null or key.expires_at > now())
       and (key.last_used_at is null or key.last_used_at < now() - interval '1 minute');

    return query
        select key.id,
               key.tenant_id,
               key.role,
               case
                   when key.revoked_at is not null then 'revoked'
                   when key.expires_at <= now() then 'expired'
                   else 'active'
               end
          from tenancy.api_keys as key
         where key.key_hash = p_key_hash;
end
$$;

CREATE FUNCTION tenancy.create_api_key(p_id uuid, p_name text, p_role text, p_hint text, p_key_hash bytea, p_expires_at timestamp with time zone, p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    if p_expires_at <= now() then
        raise exception 'the expiry lies in the past: %', p_expires_at using errcode = 'invalid_parameter_value';
    end if;
    insert into tenancy.api_keys (id, tenant_id, name, role, hint, key_hash, expires_at)
    values (p_id, v_tenant_id, p_name, p_role, p_hint, p_key_hash, p_expires_at);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'key.created', 'key:' || p_id, p_role);
end
$$;

CREATE FUNCTION tenancy.create_provider_account(p_id uuid, p_workspace_id uuid, p_name text, p_provider text, p_settings jsonb, p_sealed_secret bytea, p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, settings, sealed_secret)
    values (p_id, v_tenant_id, p_workspace_id, p_name, p_provider, p_settings, p_sealed_secret);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'account.created', 'account:' || p_id, p_provider);
end
$$;

CREATE FUNCTION tenancy.create_tenant(p_id uuid, p_workspace_id uuid, p_name text, p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into tenancy.tenants (id, name) values (p_id, p_name);
    insert into tenancy.workspaces (id, tenant_id, name) values (p_workspace_id, p_id, 'default');
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_id, p_actor, 'tenant.created', 'tenant:' || p_id);
end
$$;

CREATE FUNCTION tenancy.current_tenant_id() RETURNS uuid
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN (NULLIF(current_setting('app.current_tenant_id'::text, true), ''::text) IS NULL) THEN (NULLIF(current_setting('app.current_tenant'::text, true), ''::text))::uuid WHEN ((NULLIF(current_setting('app.current_tenant'::text, true), ''::text) IS NULL) OR ((NULLIF(current_setting('app.current_tenant'::text, true), ''::text))::uuid = (NULLIF(current_setting('app.current_tenant_id'::text, true), ''::text))::uuid)) THEN (NULLIF(current_setting('app.current_tenant_id'::text, true), ''::text))::uuid ELSE NULL::uuid END;

CREATE FUNCTION tenancy.may_act_for(p_tenant_id uuid) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select case
               when tenancy.current_tenant_id() is null then pg_has_role(session_user, 'postrider_owner', 'member')
               else p_tenant_id is not distinct from tenancy.current_tenant_id()
           end
$$;

CREATE FUNCTION tenancy.protect(p_table regclass, p_tenant_column text DEFAULT 'tenant_id'::text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    execute format('alter table %s enable row level security', p_table);
    execute format('alter table %s force row level security', p_table);
    execute format('create policy owner_passes on %s to postrider_owner using (true) with check (true)', p_table);
    -- The sub-select makes Postgres ask once per statement instead of once per row.
    execute format('create policy tenant_sees_its_own on %s for select '
                   'to postrider_app, postrider_worker, postrider_read '
                   'using (%I = (select tenancy.current_tenant_id()))', p_table, p_tenant_column);
end
$$;

CREATE FUNCTION tenancy.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;

CREATE FUNCTION tenancy.remove_provider_account(p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    delete from tenancy.provider_accounts
     where tenant_id = v_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_tenant_id, p_actor, 'account.removed', 'account:' || p_id);
    return true;
end
$$;

CREATE FUNCTION tenancy.required_tenant_id() RETURNS uuid
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if tenancy.current_tenant_id() is null then
        raise exception 'no tenant is set for this transaction'
            using errcode = 'insufficient_privilege',
                  hint = 'Begin with: set local app.current_tenant_id = ''<tenant id>''.';
    end if;
    return tenancy.current_tenant_id();
end
$$;

CREATE FUNCTION tenancy.revoke_api_key(p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    update tenancy.api_keys
       set revoked_at = now()
     where tenant_id = v_tenant_id
       and id = p_id
       and revoked_at is null;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject)
        values (v_tenant_id, p_actor, 'key.revoked', 'key:' || p_id);
    end if;
    return exists (select from tenancy.api_keys where tenant_id = v_tenant_id and id = p_id);
end
$$;

CREATE FUNCTION tenancy.rotate_provider_account(p_id uuid, p_sealed_secret bytea, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    update tenancy.provider_accounts
       set sealed_secret = p_sealed_secret,
           updated_at = now()
     where tenant_id = v_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_tenant_id, p_actor, 'account.rotated', 'account:' || p_id);
    return true;
end
$$;

CREATE TABLE m10_recovery.outbox (
    id bigint NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    processed_at timestamp with time zone,
    retry_count integer DEFAULT 0 NOT NULL,
    process_after timestamp with time zone,
    claimed_at timestamp with time zone,
    claimed_by text,
    last_error text,
    tenant_id uuid
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.2', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');

ALTER TABLE ONLY m10_recovery.outbox FORCE ROW LEVEL SECURITY;

CREATE TABLE m10_recovery.outbox_deliveries (
    event_id bigint NOT NULL,
    sink text NOT NULL,
    delivered_at timestamp with time zone DEFAULT now() NOT NULL
);

ALTER TABLE m10_recovery.outbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME m10_recovery.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postrider.catalogue (
    line text NOT NULL
);

CREATE TABLE postrider.migrations (
    version integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE tenancy.api_keys (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    role text NOT NULL,
    hint text NOT NULL,
    key_hash bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    CONSTRAINT api_keys_hash_is_sha256 CHECK ((octet_length(key_hash) = 32)),
    CONSTRAINT api_keys_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255))),
    CONSTRAINT api_keys_role_check CHECK ((role = ANY (ARRAY['viewer'::text, 'operator'::text, 'admin'::text])))
);

ALTER TABLE ONLY tenancy.api_keys FORCE ROW LEVEL SECURITY;

CREATE TABLE tenancy.audit_log (
    id bigint NOT NULL,
    tenant_id uuid,
    at timestamp with time zone DEFAULT now() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    note text,
    CONSTRAINT audit_log_actor_is_named CHECK ((btrim(actor) <> ''::text))
);

ALTER TABLE ONLY tenancy.audit_log FORCE ROW LEVEL SECURITY;

ALTER TABLE tenancy.audit_log ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tenancy.audit_log_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tenancy.provider_accounts (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    provider text NOT NULL,
    settings jsonb DEFAULT '{}'::jsonb NOT NULL,
    sealed_secret bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT provider_accounts_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255))),
    CONSTRAINT provider_accounts_provider_is_given CHECK ((provider ~ '^[a-z][a-z0-9_]{0,62}$'::text)),
    CONSTRAINT provider_accounts_settings_are_an_object CHECK ((jsonb_typeof(settings) = 'object'::text))
);

ALTER TABLE ONLY tenancy.provider_accounts FORCE ROW LEVEL SECURITY;

CREATE TABLE tenancy.tenants (
    id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT tenants_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255)))
);

ALTER TABLE ONLY tenancy.tenants FORCE ROW LEVEL SECURITY;

CREATE TABLE tenancy.workspaces (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT workspaces_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255)))
);

ALTER TABLE ONLY tenancy.workspaces FORCE ROW LEVEL SECURITY;

ALTER TABLE ONLY m10_recovery.outbox_deliveries
    ADD CONSTRAINT outbox_deliveries_pkey PRIMARY KEY (event_id, sink);

ALTER TABLE ONLY m10_recovery.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postrider.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (version);

ALTER TABLE ONLY tenancy.api_keys
    ADD CONSTRAINT api_keys_one_row_per_key UNIQUE (key_hash, tenant_id);

ALTER TABLE ONLY tenancy.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY tenancy.audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (id);

ALTER TABLE ONLY tenancy.provider_accounts
    ADD CONSTRAINT provider_accounts_one_per_name UNIQUE (tenant_id, workspace_id, name);

ALTER TABLE ONLY tenancy.provider_accounts
    ADD CONSTRAINT provider_accounts_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY tenancy.tenants
    ADD CONSTRAINT tenants_one_per_name UNIQUE (name);

ALTER TABLE ONLY tenancy.tenants
    ADD CONSTRAINT tenants_pkey PRIMARY KEY (id);

ALTER TABLE ONLY tenancy.workspaces
    ADD CONSTRAINT workspaces_one_per_name UNIQUE (tenant_id, name);

ALTER TABLE ONLY tenancy.workspaces
    ADD CONSTRAINT workspaces_pkey PRIMARY KEY (tenant_id, id);

CREATE INDEX outbox_by_tenant ON m10_recovery.outbox USING btree (tenant_id, id) WHERE (tenant_id IS NOT NULL);

CREATE INDEX outbox_failed_before ON m10_recovery.outbox USING btree (retry_count, id) WHERE ((processed_at IS NULL) AND (retry_count > 0));

CREATE INDEX outbox_ready_to_claim ON m10_recovery.outbox USING btree (COALESCE(process_after, '-infinity'::timestamp with time zone), id) WHERE (processed_at IS NULL);

CREATE INDEX audit_log_by_subject ON tenancy.audit_log USING btree (subject, id);

CREATE INDEX audit_log_by_tenant ON tenancy.audit_log USING btree (tenant_id, id);

CREATE TRIGGER outbox_claim_has_a_holder BEFORE UPDATE OF claimed_at, claimed_by ON m10_recovery.outbox FOR EACH ROW WHEN (((new.claimed_at IS NULL) <> (new.claimed_by IS NULL))) EXECUTE FUNCTION tenancy.refuse_change('a claim has a time and a holder, or neither');

CREATE TRIGGER outbox_events_are_facts BEFORE UPDATE OF id, aggregate_type, aggregate_id, event_type, payload, created_at, tenant_id ON m10_recovery.outbox FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('what was published stays as it was published');

CREATE TRIGGER outbox_events_begin_well BEFORE INSERT ON m10_recovery.outbox FOR EACH ROW WHEN (((new.aggregate_type = ''::text) OR (new.aggregate_id = ''::text) OR (new.event_type = ''::text) OR (new.retry_count < 0) OR ((new.claimed_at IS NULL) <> (new.claimed_by IS NULL)))) EXECUTE FUNCTION tenancy.refuse_change('an event has its three names, counts from zero, and a claim has a holder');

CREATE TRIGGER outbox_is_never_emptied BEFORE TRUNCATE ON m10_recovery.outbox FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('events are removed by prune_outbox, once processed');

CREATE TRIGGER outbox_nothing_accepted_is_lost BEFORE DELETE ON m10_recovery.outbox FOR EACH ROW WHEN ((old.processed_at IS NULL)) EXECUTE FUNCTION tenancy.refuse_change('an event that is not processed cannot be removed');

CREATE TRIGGER outbox_processed_is_final BEFORE UPDATE ON m10_recovery.outbox FOR EACH ROW WHEN ((old.processed_at IS NOT NULL)) EXECUTE FUNCTION tenancy.refuse_change('a processed event never changes');

CREATE TRIGGER outbox_retries_count_from_zero BEFORE UPDATE OF retry_count ON m10_recovery.outbox FOR EACH ROW WHEN ((new.retry_count < 0)) EXECUTE FUNCTION tenancy.refuse_change('retry_count counts failures and is never negative');

CREATE TRIGGER api_keys_revoked_for_ever BEFORE UPDATE ON tenancy.api_keys FOR EACH ROW WHEN ((old.revoked_at IS NOT NULL)) EXECUTE FUNCTION tenancy.refuse_change('a revoked key stays as it is; create a new one');

CREATE TRIGGER audit_log_is_append_only BEFORE DELETE OR UPDATE ON tenancy.audit_log FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('the audit log is append-only');

CREATE TRIGGER audit_log_is_never_emptied BEFORE TRUNCATE ON tenancy.audit_log FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('the audit log is append-only');

CREATE TRIGGER provider_accounts_stay_where_they_are BEFORE UPDATE OF id, tenant_id ON tenancy.provider_accounts FOR EACH ROW WHEN (((old.id <> new.id) OR (old.tenant_id <> new.tenant_id))) EXECUTE FUNCTION tenancy.refuse_change('an account does not move; its secret is bound to its row');

ALTER TABLE ONLY m10_recovery.outbox_deliveries
    ADD CONSTRAINT outbox_deliveries_event_id_fkey FOREIGN KEY (event_id) REFERENCES m10_recovery.outbox(id) ON DELETE CASCADE;

ALTER TABLE ONLY m10_recovery.outbox
    ADD CONSTRAINT outbox_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY tenancy.api_keys
    ADD CONSTRAINT api_keys_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY tenancy.audit_log
    ADD CONSTRAINT audit_log_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY tenancy.provider_accounts
    ADD CONSTRAINT provider_accounts_belong_to_a_workspace FOREIGN KEY (tenant_id, workspace_id) REFERENCES tenancy.workspaces(tenant_id, id);

ALTER TABLE ONLY tenancy.workspaces
    ADD CONSTRAINT workspaces_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE m10_recovery.outbox ENABLE ROW LEVEL SECURITY;

CREATE POLICY owner_passes ON m10_recovery.outbox TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY tenant_sees_its_own ON m10_recovery.outbox FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

ALTER TABLE tenancy.api_keys ENABLE ROW LEVEL SECURITY;

ALTER TABLE tenancy.audit_log ENABLE ROW LEVEL SECURITY;

CREATE POLICY owner_passes ON tenancy.api_keys TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.audit_log TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.provider_accounts TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.tenants TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.workspaces TO postrider_owner USING (true) WITH CHECK (true);

ALTER TABLE tenancy.provider_accounts ENABLE ROW LEVEL SECURITY;

CREATE POLICY tenant_sees_its_own ON tenancy.api_keys FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.audit_log FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.provider_accounts FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.tenants FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.workspaces FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

ALTER TABLE tenancy.tenants ENABLE ROW LEVEL SECURITY;

ALTER TABLE tenancy.workspaces ENABLE ROW LEVEL SECURITY;

GRANT USAGE ON SCHEMA m10_recovery TO postrider_app;
GRANT USAGE ON SCHEMA m10_recovery TO postrider_worker;
GRANT USAGE ON SCHEMA m10_recovery TO postrider_read;

GRANT USAGE ON SCHEMA postrider TO postrider_app;
GRANT USAGE ON SCHEMA postrider TO postrider_worker;
GRANT USAGE ON SCHEMA postrider TO postrider_read;

GRANT USAGE ON SCHEMA tenancy TO postrider_app;
GRANT USAGE ON SCHEMA tenancy TO postrider_worker;
GRANT USAGE ON SCHEMA tenancy TO postrider_read;

REVOKE ALL ON FUNCTION m10_recovery.claim_outbox_events(p_processor_id text, p_batch_size integer) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.claim_outbox_events(p_processor_id text, p_batch_size integer) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.close_outbox_event(p_event_id bigint, p_actor text, p_note text) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.close_outbox_event(p_event_id bigint, p_actor text, p_note text) TO postrider_app;

REVOKE ALL ON FUNCTION m10_recovery.complete_outbox_event(p_event_id bigint, p_processor_id text, p_success boolean, p_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.complete_outbox_event(p_event_id bigint, p_processor_id text, p_success boolean, p_error text) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.complete_outbox_events(p_processor_id text, p_event_ids bigint[], p_errors text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.complete_outbox_events(p_processor_id text, p_event_ids bigint[], p_errors text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.contract_violations() FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.contract_violations() TO postrider_app;
GRANT ALL ON FUNCTION m10_recovery.contract_violations() TO postrider_worker;
GRANT ALL ON FUNCTION m10_recovery.contract_violations() TO postrider_read;

REVOKE ALL ON FUNCTION m10_recovery.describe_claims(p_processor_id text, p_event_ids bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.describe_claims(p_processor_id text, p_event_ids bigint[]) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.note_deliveries(p_processor_id text, p_event_ids bigint[], p_sinks text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.note_deliveries(p_processor_id text, p_event_ids bigint[], p_sinks text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.outbox_backlog(p_stuck_after integer) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.outbox_backlog(p_stuck_after integer) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.prune_outbox(p_processed_before timestamp with time zone, p_after_id bigint, p_window integer) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.prune_outbox(p_processed_before timestamp with time zone, p_after_id bigint, p_window integer) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb) TO postrider_app;
GRANT ALL ON FUNCTION m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.release_outbox_events(p_processor_id text, p_event_ids bigint[], p_delays_ms bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.release_outbox_events(p_processor_id text, p_event_ids bigint[], p_delays_ms bigint[]) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.retry_outbox_event(p_event_id bigint, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.retry_outbox_event(p_event_id bigint, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.authenticate_api_key(p_key_hash bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.authenticate_api_key(p_key_hash bytea) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.create_api_key(p_id uuid, p_name text, p_role text, p_hint text, p_key_hash bytea, p_expires_at timestamp with time zone, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.create_api_key(p_id uuid, p_name text, p_role text, p_hint text, p_key_hash bytea, p_expires_at timestamp with time zone, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.create_provider_account(p_id uuid, p_workspace_id uuid, p_name text, p_provider text, p_settings jsonb, p_sealed_secret bytea, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.create_provider_account(p_id uuid, p_workspace_id uuid, p_name text, p_provider text, p_settings jsonb, p_sealed_secret bytea, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.create_tenant(p_id uuid, p_workspace_id uuid, p_name text, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.current_tenant_id() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.current_tenant_id() TO postrider_app;
GRANT ALL ON FUNCTION tenancy.current_tenant_id() TO postrider_worker;
GRANT ALL ON FUNCTION tenancy.current_tenant_id() TO postrider_read;

REVOKE ALL ON FUNCTION tenancy.may_act_for(p_tenant_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.may_act_for(p_tenant_id uuid) TO postrider_app;
GRANT ALL ON FUNCTION tenancy.may_act_for(p_tenant_id uuid) TO postrider_worker;
GRANT ALL ON FUNCTION tenancy.may_act_for(p_tenant_id uuid) TO postrider_read;

REVOKE ALL ON FUNCTION tenancy.protect(p_table regclass, p_tenant_column text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.refuse_change() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.remove_provider_account(p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.remove_provider_account(p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.required_tenant_id() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.required_tenant_id() TO postrider_app;
GRANT ALL ON FUNCTION tenancy.required_tenant_id() TO postrider_worker;
GRANT ALL ON FUNCTION tenancy.required_tenant_id() TO postrider_read;

REVOKE ALL ON FUNCTION tenancy.revoke_api_key(p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.revoke_api_key(p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.rotate_provider_account(p_id uuid, p_sealed_secret bytea, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.rotate_provider_account(p_id uuid, p_sealed_secret bytea, p_actor text) TO postrider_app;

GRANT SELECT ON TABLE m10_recovery.outbox TO postrider_app;
GRANT SELECT ON TABLE m10_recovery.outbox TO postrider_worker;
GRANT SELECT ON TABLE m10_recovery.outbox TO postrider_read;

GRANT SELECT ON TABLE postrider.catalogue TO postrider_app;
GRANT SELECT ON TABLE postrider.catalogue TO postrider_worker;
GRANT SELECT ON TABLE postrider.catalogue TO postrider_read;

GRANT SELECT ON TABLE postrider.migrations TO postrider_app;
GRANT SELECT ON TABLE postrider.migrations TO postrider_worker;
GRANT SELECT ON TABLE postrider.migrations TO postrider_read;

GRANT SELECT(id) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(id) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(tenant_id) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(tenant_id) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(name) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(name) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(role) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(role) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(hint) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(hint) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(created_at) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(created_at) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(expires_at) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(expires_at) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(revoked_at) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(revoked_at) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(last_used_at) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(last_used_at) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT ON TABLE tenancy.audit_log TO postrider_app;
GRANT SELECT ON TABLE tenancy.audit_log TO postrider_worker;
GRANT SELECT ON TABLE tenancy.audit_log TO postrider_read;

GRANT SELECT ON TABLE tenancy.provider_accounts TO postrider_worker;

GRANT SELECT(id) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(id) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(tenant_id) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(tenant_id) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(workspace_id) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(workspace_id) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(name) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(name) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(provider) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(provider) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(settings) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(settings) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(created_at) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(created_at) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(updated_at) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(updated_at) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT ON TABLE tenancy.tenants TO postrider_app;
GRANT SELECT ON TABLE tenancy.tenants TO postrider_worker;
GRANT SELECT ON TABLE tenancy.tenants TO postrider_read;

GRANT SELECT ON TABLE tenancy.workspaces TO postrider_app;
GRANT SELECT ON TABLE tenancy.workspaces TO postrider_worker;
GRANT SELECT ON TABLE tenancy.workspaces TO postrider_read;

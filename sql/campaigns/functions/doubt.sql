-- Items in doubt: detection, and settlement by evidence of a person or of a provider's callback.

create or replace function execution.doubted_since(
    p_status text, p_in_doubt_since timestamptz, p_reserved_by text, p_attempt integer, p_created_at timestamptz,
    p_job_status text, p_locked_by text, p_locked_at timestamptz, p_job_attempts integer)
returns timestamptz
language sql
stable
parallel safe
return case
           when p_status <> 'queued' then null
           when p_in_doubt_since is not null then p_in_doubt_since
           when p_reserved_by is null then null
           when p_job_status = 'locked' and p_locked_by = p_reserved_by and p_job_attempts = p_attempt
               then case
                        when p_locked_at < now() - interval '60 seconds' then greatest(p_locked_at, p_created_at)
                    end
           else p_created_at
       end;
comment on function execution.doubted_since(
        text, timestamptz, text, integer, timestamptz, text, text, timestamptz, integer) is
    'Returns since when an item is in doubt: since it was marked; or since the last heartbeat of its worker, if that '
    'is more than a minute ago; or since its reservation, if its send job has continued without it. Null while its worker '
    'works on it, while it waits for its account without a worker, and after its end.';
revoke all on function
    execution.doubted_since(
        text, timestamptz, text, integer, timestamptz, text, text, timestamptz, integer)
    from public;
grant execute on function
    execution.doubted_since(
        text, timestamptz, text, integer, timestamptz, text, text, timestamptz, integer)
    to postrider_app, postrider_worker, postrider_read;

create or replace function execution.follow_doubt()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if new.in_doubt_since is null then
        delete from execution.doubts where tenant_id = new.tenant_id and outbox_id = new.id;
    else
        insert into execution.doubts (outbox_id, tenant_id, account_id, provider, campaign_id, in_doubt_since)
        select new.id, new.tenant_id, account.id, account.provider, run.campaign_id, new.in_doubt_since
          from execution.campaign_runs as run
               join tenancy.provider_accounts as account
                 on account.tenant_id = run.tenant_id
                and account.id = coalesce(new.moved_to_account_id, run.provider_account_id)
         where run.tenant_id = new.tenant_id
           and run.id = new.run_id
            on conflict (tenant_id, outbox_id) do update set in_doubt_since = excluded.in_doubt_since;
    end if;
    return null;
end
$$;
comment on function execution.follow_doubt() is
    'Trigger function: adds a row to execution.doubts when an item becomes in doubt, and deletes it when the doubt '
    'ends.';
revoke all on function execution.follow_doubt() from public;
create or replace trigger channel_outbox_doubts_are_followed
    after update on execution.channel_outbox
    for each row
    when (old.in_doubt_since is distinct from new.in_doubt_since)
    execute function execution.follow_doubt();

create or replace function execution.settle_in_doubt(
    p_tenant_id uuid, p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_item record;
    v_status text;
begin
    if coalesce(p_as, '') not in ('sent', 'failed') then
        raise exception 'an item is resolved as sent or as failed, not as %', coalesce(p_as, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(btrim(p_note), '') = '' or coalesce(btrim(p_actor), '') = '' then
        raise exception 'a resolution needs a note that says how it is known, and who says so'
            using errcode = 'invalid_parameter_value';
    end if;
    -- Lock the send job before its item, as every function does. Of two settlements of the last items, the later one
    -- then sees both.
    perform
       from execution.job_queue as job
      where job.tenant_id = p_tenant_id
        and job.id = (select item.job_id
                        from execution.channel_outbox as item
                       where item.tenant_id = p_tenant_id
                         and item.id = p_outbox_id)
        for no key update;
    select item.*, run.quiet_time, job.status as job_status,
           execution.doubted_since(item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at,
                                   job.status, job.locked_by, job.locked_at, job.attempts) as since
      into v_item
      from execution.channel_outbox as item
           join execution.job_queue as job on job.tenant_id = item.tenant_id and job.id = item.job_id
           join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
     where item.tenant_id = p_tenant_id
       and item.id = p_outbox_id
       for no key update of item;
    if not found then
        raise exception 'there is no item %', p_outbox_id
            using errcode = 'no_data_found', hint = '`postrider in-doubt list` shows what is in doubt.';
    end if;
    if v_item.status <> 'queued' then
        raise exception 'item % is % already', p_outbox_id, v_item.status
            using errcode = 'invalid_parameter_value',
                  hint = 'An item that has ended is never reopened; `postrider trace` shows its history.';
    end if;
    if v_item.since is null then
        raise exception 'item % is not in doubt: its worker is at work', p_outbox_id
            using errcode = 'invalid_parameter_value', hint = 'Look again in a minute.';
    end if;
    if p_as = 'failed' and v_now < v_item.since + v_item.quiet_time then
        raise exception 'item % may still arrive until %', p_outbox_id,
                        to_char((v_item.since + v_item.quiet_time) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')
            using errcode = 'invalid_parameter_value',
                  hint = 'That it was not sent counts only after the quiet time. That it was sent counts at once.';
    end if;

    v_status := case p_as when 'sent' then execution.success_of(v_item.channel) else 'failed' end;
    update execution.channel_outbox
       set status = v_status,
           provider_message_id = left(p_provider_message_id, 500),
           error = case when p_as = 'failed' then left(p_note, 2000) end,
           finalized_at = v_now,
           in_doubt_since = null
     where tenant_id = p_tenant_id
       and id = p_outbox_id;
    perform execution.audit(p_tenant_id, null, null, v_item.run_id, v_item.job_id, p_outbox_id, p_actor,
                            'item.resolved_as_' || v_status, left(p_note, 2000));
    -- No other item keeps the send job waiting: make it due now.
    if v_item.job_status = 'failed'
       and not exists (select
                         from execution.channel_outbox as item
                        where item.tenant_id = p_tenant_id
                          and item.job_id = v_item.job_id
                          and item.status = 'queued')
    then
        update execution.job_queue
           set run_after = least(run_after, v_now)
         where tenant_id = p_tenant_id
           and id = v_item.job_id
           and status = 'failed';
    end if;
    return v_status;
end
$$;
comment on function execution.settle_in_doubt(uuid, uuid, text, text, text, text) is
    'Settles an item in doubt as sent (stored as the success status of its channel) or as failed, with a note that '
    'names the evidence. Evidence that it was sent counts at any time; evidence that it was not sent counts only '
    'after the quiet time.';
revoke all on function execution.settle_in_doubt(uuid, uuid, text, text, text, text) from public;

create or replace function execution.resolve_in_doubt(
    p_tenant_id uuid, p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return execution.settle_in_doubt(p_tenant_id, p_outbox_id, p_as, p_provider_message_id, p_note, p_actor);
end
$$;
comment on function execution.resolve_in_doubt(uuid, uuid, text, text, text, text) is
    'Settles an item in doubt of the tenant, on behalf of a person.';
revoke all on function execution.resolve_in_doubt(uuid, uuid, text, text, text, text) from public;
grant execute on function execution.resolve_in_doubt(uuid, uuid, text, text, text, text) to postrider_app;

create or replace function execution.resolve_many_in_doubt(
    p_tenant_id uuid, p_outbox_ids uuid[], p_as text, p_provider_message_ids text[], p_note text, p_actor text)
returns table (outbox_id uuid, status text, refusal text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_job_ids uuid[];
    v_item record;
    v_hint text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if coalesce(cardinality(p_outbox_ids), 0) not between 1 and 1000
       or cardinality(p_outbox_ids) is distinct from cardinality(p_provider_message_ids)
    then
        raise exception 'between 1 and 1000 items are resolved at a time, each with a message id or null'
            using errcode = 'invalid_parameter_value';
    end if;
    -- Lock the send jobs of all items in the order of their ids, so that two such calls cannot block each other.
    v_job_ids := array(
        select distinct item.job_id
          from execution.channel_outbox as item
         where item.tenant_id = p_tenant_id
           and item.id = any (p_outbox_ids));
    perform
       from execution.job_queue as job
      where job.tenant_id = p_tenant_id
        and job.id = any (v_job_ids)
      order by job.id
        for no key update;
    for v_item in
        select given.id, given.message_id
          from unnest(p_outbox_ids, p_provider_message_ids) with ordinality as given (id, message_id, place)
         order by given.place
    loop
        -- Each item has a savepoint: the refusal of one leaves the others settled.
        begin
            outbox_id := v_item.id;
            refusal := null;
            status := execution.settle_in_doubt(p_tenant_id, v_item.id, p_as, v_item.message_id, p_note, p_actor);
        exception
            when invalid_parameter_value or no_data_found then
                get stacked diagnostics v_hint = pg_exception_hint;
                status := null;
                refusal := sqlerrm || coalesce('. ' || nullif(v_hint, ''), '');
        end;
        return next;
    end loop;
end
$$;
comment on function execution.resolve_many_in_doubt(uuid, uuid[], text, text[], text, text) is
    'Settles up to 1000 items in doubt of the tenant, on behalf of a person. Returns one row per item, in the given '
    'order: the status of a settled item, or the reason why the item was refused.';
revoke all on function execution.resolve_many_in_doubt(uuid, uuid[], text, text[], text, text) from public;
grant execute on function execution.resolve_many_in_doubt(uuid, uuid[], text, text[], text, text) to postrider_app;

create or replace function execution.record_callback(
    p_tenant_id uuid, p_account_id uuid, p_idempotency_key text, p_message_id text, p_status text, p_proves_action boolean)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_item record;
    v_is_new boolean;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select item.id, item.run_id, item.job_id, account.provider
      into v_item
      from tenancy.provider_accounts as account
           join execution.channel_outbox as item
             on item.tenant_id = account.tenant_id
            and item.workspace_id = account.workspace_id
            and item.idempotency_key = p_idempotency_key
           join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
     where account.tenant_id = p_tenant_id
       and account.id = p_account_id
       and account.id = coalesce(item.moved_to_account_id, run.provider_account_id);
    if not found then
        return 'unknown';
    end if;
    insert into execution.provider_callbacks (tenant_id, account_id, idempotency_key, message_id, status, proves_action)
    values (p_tenant_id, p_account_id, p_idempotency_key, p_message_id, p_status, p_proves_action)
        on conflict do nothing;
    v_is_new := found;
    if not p_proves_action then
        return 'recorded';
    end if;
    perform from execution.job_queue as job where job.tenant_id = p_tenant_id and job.id = v_item.job_id for no key update;
    perform
       from execution.channel_outbox as item
      where item.tenant_id = p_tenant_id
        and item.id = v_item.id
        and item.status = 'queued'
        and item.in_doubt_since is not null
        for no key update;
    if found then
        perform execution.settle_in_doubt(
            p_tenant_id, v_item.id, 'sent', p_message_id,
            v_item.provider || ' called back: ' || p_message_id || ' is ' || p_status, 'callback-' || v_item.provider);
        return 'settled';
    end if;
    if v_is_new and exists (select
                              from execution.channel_outbox as item
                             where item.tenant_id = p_tenant_id
                               and item.id = v_item.id
                               and item.status = 'failed')
    then
        perform execution.audit(p_tenant_id, null, null, v_item.run_id, v_item.job_id, v_item.id,
                                'callback-' || v_item.provider, 'item.contradicted',
                                'the provider called back: ' || p_message_id || ' is ' || p_status);
        return 'contradicted';
    end if;
    return 'recorded';
end
$$;
comment on function execution.record_callback(uuid, uuid, text, text, text, boolean) is
    'Stores a status callback of a provider about a call of this account of the tenant. A callback '
    'that proves the action settles an item in doubt at once. Returns settled, recorded, contradicted if the item was '
    'settled as failed, or unknown if no item of this account has this key.';
revoke all on function execution.record_callback(uuid, uuid, text, text, text, boolean) from public;
grant execute on function execution.record_callback(uuid, uuid, text, text, text, boolean) to postrider_app;
